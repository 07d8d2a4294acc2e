"""What is declared is what runs; what is refused says why."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hardpoint import DeviceCapability, InMemoryMachine, LiveMachine
from hardpoint._requirements import requirement_reason
from hardpoint.attention import AttentionConfig, AttentionSupport
from hardpoint.hookspecs import API_VERSION
from hardpoint_flash_attn._support import DENSE_SUPPORT, LATENT_SUPPORT
from hardpoint_flash_attn.plugin import dense, latent
from tests.kernel_configs import dense_configs, latent_configs
from tests.kernel_steps import check_smallest

if TYPE_CHECKING:
    from collections.abc import Callable

    from hardpoint import Reason
    from tests.kernel_library import Library

    Flash = Callable[..., list[Library]]

MACHINES = {
    "a100 with 2": (("fa2",), (8, 0)),
    "h100 with 2": (("fa2",), (9, 0)),
    "h100 with 3": (("fa3",), (9, 0)),
    "h100 with 4": (("fa4",), (9, 0)),
    "h100 with all": (("fa2", "fa3", "fa4"), (9, 0)),
    "b200 with 2 and 4": (("fa2", "fa4"), (10, 0)),
    "thor with 4": (("fa4",), (11, 0)),
    "rtx 5090 with 2 and 4": (("fa2", "fa4"), (12, 0)),
}


def config(**changes: Any) -> AttentionConfig:
    """A plain decoder."""
    return AttentionConfig(**{"head_size": 128, "num_heads": 8, "dtype": "bfloat16", "block_size": 256, **changes})


def against(support: AttentionSupport, version: tuple[int, int], asked: AttentionConfig) -> list[str]:
    """The messages of declared support on a device, with the packages that are installed now."""

    def package_reason(text: str) -> Reason | None:
        return requirement_reason(text, LiveMachine())

    return [reason.message for reason in support.reasons(DeviceCapability.parse(version), asked, package_reason)]


def test_the_light_module_imports_no_torch() -> None:
    """Listing the backends, and asking their declared support, imports no heavy module."""
    program = """
import sys
from hardpoint import DeviceCapability
from hardpoint.attention import AttentionConfig
from hardpoint_flash_attn.plugin import dense, latent
config = AttentionConfig(head_size=64, num_heads=4, dtype="bf16", block_size=256)
assert dense.hardpoint_backend().support.reasons(DeviceCapability.parse("9.0"), config) == ()
latent.hardpoint_backend()
assert not {"torch", "numpy", "flash_attn", "flash_attn_interface"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_descriptors() -> None:
    """Each backend is a plugin object of its own; the packages stand in the variants."""
    spec, other = dense.hardpoint_backend(), latent.hardpoint_backend()
    assert (spec.api, spec.kind, spec.platforms) == (API_VERSION, "attention", ("cuda", "rocm"))
    assert (other.api, other.kind, other.platforms) == (API_VERSION, "mla_attention", ("cuda",))
    assert {variant.package for variant in spec.support.variants} == {
        "flash-attn>=2.6,<3",
        "flash-attn>=2.7.3,<3",
        "flash-attn>=2.8,<3",
        "flash-attn-3>=3.0.0b1,<4",
        "flash-attn-4>=4.0.0b36",
    }
    assert spec.target == "hardpoint_flash_attn.backend:FlashAttnBackend"
    assert other.target == "hardpoint_flash_attn.mla:FlashAttnMlaBackend"


@pytest.mark.parametrize(
    ("version", "changes", "messages"),
    [
        ((7, 5), {}, ["capability 7.5; runs on 8.x or 9.x"]),
        ((8, 0), {"block_size": 16}, ["block_size=16; accepts a multiple of 256, at least 256 (or none)"]),
        ((8, 0), {"head_size": 100}, ["head_size=100; accepts a multiple of 8, at least 8, at most 256"]),
        ((8, 0), {"dtype": "float32"}, ["dtype=float32; accepts float16 or bfloat16"]),
        ((8, 0), {"kv_cache_dtype": "fp8"}, ["kv_cache_dtype=float8_e4m3fn; accepts auto"]),
        ((8, 0), {"sinks": True}, ["sinks=True; accepts False"]),
        ((8, 0), {"batch_invariant": True}, ["batch_invariant=True; accepts False"]),
        (
            (8, 0),
            {"head_size": 512, "sinks": True},
            ["head_size=512; accepts a multiple of 8, at least 8, at most 256", "sinks=True; accepts False"],
        ),
    ],
)
def test_all_reasons_at_once(
    flash: Flash, version: tuple[int, int], changes: dict[str, Any], messages: list[str]
) -> None:
    """Each with the value asked for and what would be accepted."""
    flash("fa2", capability=version)
    assert against(DENSE_SUPPORT, version, config(**changes)) == messages


AMD = DeviceCapability(runtime="rocm", arch="gfx942")


@pytest.mark.parametrize(
    ("installed", "device", "changes", "messages"),
    [
        ({"flash-attn": "2.6.3"}, "9.0", {}, []),
        ({"flash-attn": "2.6.3"}, "10.0", {}, ["found flash-attn 2.6.3, needs <3,>=2.7.3"]),
        ({"flash-attn": "2.7.2.post1"}, "12.0", {}, ["found flash-attn 2.7.2.post1, needs <3,>=2.7.3"]),
        ({"flash-attn": "2.7.3"}, "12.0", {}, []),
        ({"flash-attn": "2.7.2.post1"}, AMD, {}, ["found flash-attn 2.7.2.post1, needs <3,>=2.7.3"]),
        ({"flash-attn": "2.7.4.post1"}, AMD, {}, []),
        ({"flash-attn": "2.7.4.post1"}, "gfx950", {}, ["found flash-attn 2.7.4.post1, needs <3,>=2.8"]),
        ({"flash-attn": "2.8.3+cu12torch2.8cxx11abiFALSE"}, "gfx950", {"block_size": 128}, []),
        ({"flash-attn": "3.0"}, "8.0", {}, ["found flash-attn 3.0, needs <3,>=2.6"]),
        (
            {"flash-attn-4": "4.0.0b36"},
            "9.0",
            {"head_size": 72, "block_size": 64},
            ["block_size=64; accepts no cache"],
        ),
        ({"flash-attn-4": "4.0.0b36"}, "9.0", {"head_size": 72, "block_size": None, "sinks": True}, []),
        ({"flash-attn-4": "4.0.0b36"}, "10.3", {"head_size": 72, "block_size": 128}, []),
        ({"flash-attn-4": "4.0.0b36"}, "11.0", {"head_size": 256, "block_size": 16, "sinks": True}, []),
        ({"flash-attn-3": "3.0.0b1"}, "9.0", {"batch_invariant": True, "sliding_window": 64}, []),
        (
            {"flash-attn-3": "3.0.0b1"},
            "9.0",
            {"batch_invariant": True, "head_size": 64},
            ["batch_invariant=True; accepts False"],
        ),
        ({"flash-attn-3": "3.0.0b1"}, "9.0", {"batch_invariant": True, "head_size": 256}, []),
        (
            {"flash-attn-3": "3.0.0b1"},
            "9.0",
            {"batch_invariant": True, "head_size": 256, "sliding_window": 64},
            ["batch_invariant=True; accepts False"],
        ),
    ],
)
def test_what_a_release_is_built_for(
    installed: dict[str, str], device: str | DeviceCapability, changes: dict[str, Any], messages: list[str]
) -> None:
    """Devices that a release has no binary for, and sizes that its kernels leave out, are reasons from metadata."""
    machine = InMemoryMachine(distributions=installed)
    if device == "gfx950":
        device = DeviceCapability(runtime="rocm", arch="gfx950")
    capability = DeviceCapability.parse(device) if isinstance(device, str) else device
    found = DENSE_SUPPORT.reasons(capability, config(**changes), lambda text: requirement_reason(text, machine))
    assert [reason.message for reason in found] == messages


def test_alibi_needs_a_causal_mask(flash: Flash) -> None:
    """Two fields that do not go together: refused before anything is imported."""
    flash("fa2", capability=(8, 0))
    assert against(DENSE_SUPPORT, (8, 0), config(alibi=True)) == []
    assert len(against(DENSE_SUPPORT, (8, 0), config(alibi=True, causal=False))) == 1


def test_a_package_that_is_too_old_says_what_was_found(flash: Flash) -> None:
    """From metadata alone; the other two generations stand for other devices."""
    (library,) = flash("fa2", capability=(8, 0))
    info = next(library.site.glob("flash_attn-*.dist-info"))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flash-attn\nVersion: 2.3.0\n\n")
    assert against(DENSE_SUPPORT, (8, 0), config()) == ["found flash-attn 2.3.0, needs <3,>=2.6"]


def test_no_package_at_all() -> None:
    """The one that most lack is named, with the command."""
    reasons = DENSE_SUPPORT.reasons(
        DeviceCapability.parse("9.0"), config(), lambda text: requirement_reason(text, LiveMachine())
    )
    assert [(reason.code, reason.remedy) for reason in reasons] == [
        ("missing_dependency", "pip install 'flash-attn>=2.6,<3'")
    ]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("generations", "version", "changes", "expected"),
    [
        (("fa2", "fa3", "fa4"), (9, 0), {}, "fa3"),
        (("fa2", "fa3", "fa4"), (9, 0), {"sinks": True}, "fa4"),
        (("fa2", "fa3", "fa4"), (9, 0), {"alibi": True}, "fa2"),
        (("fa2", "fa3", "fa4"), (9, 0), {"batch_invariant": True}, "fa3"),
        (("fa2", "fa4"), (10, 0), {}, "fa4"),
        (("fa2", "fa4"), (10, 0), {"head_size": 200}, "fa2"),
        (("fa2", "fa3", "fa4"), (8, 6), {}, "fa2"),
        (("fa2", "fa3", "fa4"), (12, 0), {"block_size": 16}, None),
        (("fa3",), (8, 0), {}, None),
    ],
)
def test_the_generation_by_device_and_config(
    flash: Flash, generations: tuple[str, ...], version: tuple[int, int], changes: dict[str, Any], expected: str | None
) -> None:
    """3 on 9.x, 4 on 10.x, 2 elsewhere and for what only it does."""
    from hardpoint_flash_attn import _generation
    from hardpoint_flash_attn._support import DENSE

    flash(*generations, capability=version)
    found = _generation.find(DENSE, DeviceCapability.parse(version), config(**changes))
    assert (found[0] if found else None) == expected


@pytest.mark.torch
@pytest.mark.parametrize("machine", MACHINES)
@settings(
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@given(data=st.data())
def test_what_is_accepted_constructs_and_runs(flash: Flash, machine: str, data: st.DataObject) -> None:
    """Whatever declared support and validation accept is prepared, built, and right on the smallest batch."""
    from hardpoint_flash_attn.backend import FlashAttnBackend
    from hardpoint_flash_attn.mla import FlashAttnMlaBackend

    generations, version = MACHINES[machine]
    flash(*generations, capability=version)
    for support, backend, configs in (
        (DENSE_SUPPORT, FlashAttnBackend, dense_configs(block_sizes=(None, 256))),
        (LATENT_SUPPORT, FlashAttnMlaBackend, latent_configs()),
    ):
        asked = data.draw(configs)
        if against(support, version, asked):
            continue
        assert backend.validate_configuration(DeviceCapability.parse(version), asked) == []
        check_smallest(backend, asked, stride_order=data.draw(st.integers(0, 1)))


@pytest.mark.torch
def test_what_the_library_raises_in_the_smallest_step_is_an_environment_failure(flash: Flash) -> None:
    """Its checks and its compiler raise RuntimeError or assert; `prepare` makes that a reason."""
    from hardpoint_flash_attn.backend import FlashAttnBackend

    (library,) = flash("fa4", capability=(10, 0))
    for error in (RuntimeError("no kernel image"), AssertionError("sm_100 only"), ValueError("bad arch")):
        library.kernels.FAILURE = error
        with pytest.raises(OSError, match=f"FlashAttnBackend does not run on cpu .*{error}") as caught:
            FlashAttnBackend.prepare(config(), "cpu")
        assert caught.value.__cause__ is error


@pytest.mark.torch
def test_a_package_without_its_functions_is_another_one(flash: Flash) -> None:
    """The module that is imported is not the one that the metadata speaks of."""
    from hardpoint_flash_attn.backend import FlashAttnBackend

    (library,) = flash("fa3")
    (library.site / "flash_attn_interface" / "__init__.py").write_text("")
    with pytest.raises(OSError, match="has no flash_attn_varlen_func: the package is another than its metadata says"):
        FlashAttnBackend.validate_configuration(DeviceCapability.parse("9.0"), config())


@pytest.mark.torch
def test_a_generation_that_cannot_be_imported_gives_way_to_the_next(
    flash: Flash, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one WARNING that says why; strict, and where no other is left, its failure is the error."""
    from hardpoint_flash_attn.backend import FlashAttnBackend

    capability, asked = DeviceCapability.parse("9.0"), config(block_size=256)
    three, two = flash("fa3", "fa2")
    (three.site / "flash_attn_interface" / "__init__.py").write_text("raise ImportError('libcudart.so.12: no such')")
    with caplog.at_level("WARNING", logger="hardpoint"):
        assert FlashAttnBackend.validate_configuration(capability, asked) == []
        layer = FlashAttnBackend.create_layer(asked, scale=1.0, device="cpu")
    assert layer.library.generation == "fa2"
    assert caplog.messages == [
        "FlashAttention 3 cannot be imported: ImportError: libcudart.so.12: no such; using FlashAttention 2 instead"
    ]
    with monkeypatch.context() as patch:
        patch.setenv("HARDPOINT_STRICT", "1")
        with pytest.raises(ImportError, match=r"libcudart\.so\.12"):
            FlashAttnBackend.validate_configuration(capability, asked)
    (two.site / "flash_attn" / "__init__.py").write_text("raise OSError('cut off')")
    sys.modules.pop("flash_attn")
    with pytest.raises(ImportError, match=r"libcudart\.so\.12") as caught:
        FlashAttnBackend.validate_configuration(capability, asked)
    assert caught.value.__notes__ == ["FlashAttention 2 cannot be imported either: OSError: cut off"]


@pytest.mark.torch
def test_without_a_cuda_device_it_says_so() -> None:
    """Torch says it in several ways; here it is one reason."""
    import torch

    from hardpoint_flash_attn.backend import FlashAttnBackend

    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(OSError, match="torch has no GPU cpu"):
        FlashAttnBackend.create_layer(config(), scale=1.0, device="cpu")
