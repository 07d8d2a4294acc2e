"""What is declared is what runs; what is refused says why."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hardpoint import DeviceCapability
from hardpoint.attention import AttentionConfig
from hardpoint.hookspecs import API_VERSION
from hardpoint_aiter._support import DENSE, LATENT, UNIFIED
from hardpoint_aiter.plugin import dense, latent, unified
from tests.kernel_configs import dense_configs, latent_configs
from tests.kernel_steps import check_smallest

if TYPE_CHECKING:
    from tests.kernel_library import Library

SIZES = {"kind": "mla_attention", "head_size": 576, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
SUPPORT = {"aiter_fa": DENSE, "aiter_unified": UNIFIED, "aiter_mla": LATENT}


def device(architecture: str) -> DeviceCapability:
    """An AMD device."""
    return DeviceCapability(runtime="rocm", arch=architecture)


def config(**changes: Any) -> AttentionConfig:
    """A plain decoder."""
    return AttentionConfig(**{"head_size": 128, "num_heads": 16, "dtype": "bfloat16", "block_size": 16, **changes})


def test_the_light_module_imports_no_torch() -> None:
    """Listing the backends, and asking their declared support, imports no heavy module."""
    program = """
import sys
from hardpoint import DeviceCapability
from hardpoint.attention import AttentionConfig
from hardpoint_aiter.plugin import dense, latent, unified
config = AttentionConfig(head_size=64, num_heads=4, dtype="bf16", block_size=16)
for plugin in (dense, unified):
    capability = DeviceCapability(runtime="rocm", arch="gfx942")
    assert plugin.hardpoint_backend().support.reasons(capability, config) == ()
latent.hardpoint_backend()
assert not {"torch", "numpy", "aiter", "triton"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_descriptors() -> None:
    """Each backend is a plugin object of its own, for ROCm, with the library required by its version."""
    for plugin, kind, target in (
        (dense, "attention", "hardpoint_aiter.backend:AiterFaBackend"),
        (unified, "attention", "hardpoint_aiter.unified:AiterUnifiedBackend"),
        (latent, "mla_attention", "hardpoint_aiter.mla:AiterMlaBackend"),
    ):
        spec = plugin.hardpoint_backend()
        assert (spec.api, spec.kind, spec.platforms, spec.target) == (API_VERSION, kind, ("rocm",), target)
        assert spec.requires == ("torch>=2.5", "amd-aiter>=0.1.7")
        assert spec.kernel_architectures == ("gfx942", "gfx950")


@pytest.mark.parametrize(
    ("name", "architecture", "changes", "messages"),
    [
        ("aiter_fa", "gfx90a", {}, ["architecture gfx90a; runs on gfx942 or gfx950"]),
        ("aiter_fa", "gfx942", {"sinks": True}, ["sinks=True; accepts False"]),
        ("aiter_fa", "gfx942", {"kv_cache_dtype": "float8_e4m3fnuz"}, ["kv_cache_dtype=float8_e4m3fnuz; accepts auto"]),
        ("aiter_fa", "gfx950", {"head_size": 136}, ["head_size=136; accepts a multiple of 8, at least 8, at most 128"]),
        ("aiter_fa", "gfx942", {"head_size": 256, "block_size": None}, []),
        ("aiter_fa", "gfx942", {"head_size": 192, "v_head_size": 128, "block_size": None}, []),
        ("aiter_unified", "gfx1100", {}, ["architecture gfx1100; runs on gfx942"]),
        ("aiter_unified", "gfx942", {"causal": False}, ["causal=False; accepts the attention type's own"]),
        ("aiter_unified", "gfx942", {"block_size": 48}, ["block_size=48; accepts 16 or 32 or 64"]),
        ("aiter_unified", "gfx942", {"block_size": 128}, ["block_size=128; accepts 16 or 32 or 64"]),
        (
            "aiter_unified",
            "gfx942",
            {"num_heads": 144, "num_kv_heads": 1},
            ["144 query heads per key/value head; accepts at most 128"],
        ),
        ("aiter_unified", "gfx942", {"sinks": True, "alibi": True}, ["alibi=True; accepts False"]),
        (
            "aiter_unified",
            "gfx950",
            {"kv_cache_dtype": "float8_e4m3fnuz"},
            ["kv_cache_dtype=float8_e4m3fnuz; accepts auto or float8_e4m3fn or float8_e5m2"],
        ),
        ("aiter_mla", "gfx942", {**SIZES, "num_heads": 32}, ["num_heads=32; accepts 16 or 128"]),
        (
            "aiter_mla",
            "gfx950",
            {**SIZES, "dtype": "float16", "soft_cap": 30.0},
            ["dtype=float16; accepts bfloat16", "soft_cap=30.0; accepts none"],
        ),
    ],
)
def test_all_reasons_at_once(name: str, architecture: str, changes: dict[str, Any], messages: list[str]) -> None:
    """Each with the value asked for and what would be accepted."""
    found = SUPPORT[name].reasons(device(architecture), config(**changes))
    assert [reason.message for reason in found] == messages


@pytest.mark.torch
@settings(
    deadline=None,
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@given(data=st.data())
def test_what_is_accepted_constructs_and_runs(library: Library, data: st.DataObject) -> None:
    """Whatever declared support and validation accept is prepared, built, and right on the smallest batch."""
    from hardpoint_aiter.backend import AiterFaBackend
    from hardpoint_aiter.mla import AiterMlaBackend
    from hardpoint_aiter.unified import AiterUnifiedBackend

    capability = device(data.draw(st.sampled_from(["gfx942", "gfx950"])))
    for support, backend, configs in (
        (DENSE, AiterFaBackend, dense_configs((8, 64, 128, 192, 256), block_sizes=(None, 5, 16))),
        (UNIFIED, AiterUnifiedBackend, dense_configs(head_sizes=(32, 64), block_sizes=(16, 32))),
        (LATENT, AiterMlaBackend, latent_configs()),
    ):
        asked = data.draw(configs)
        if support.reasons(capability, asked):
            continue
        assert backend.validate_configuration(capability, asked) == []
        check_smallest(backend, asked, stride_order=data.draw(st.integers(0, 2)))


@pytest.mark.torch
def test_what_importing_it_raises_is_an_environment_failure(library: Library) -> None:
    """Its start-up asks ROCm's tools, and says RuntimeError; a module without the function is another package."""
    from hardpoint_aiter.backend import AiterFaBackend
    from hardpoint_aiter.mla import AiterMlaBackend

    (library.site / "aiter" / "mla" / "__init__.py").write_text("raise RuntimeError('no rocminfo')")
    with pytest.raises(OSError, match=r"aiter.mla does not load: RuntimeError: no rocminfo"):
        AiterMlaBackend.validate_configuration(device("gfx942"), config())
    (library.site / "aiter" / "__init__.py").write_text("")
    from tests.kernel_library import forget

    forget(library.site)
    with pytest.raises(OSError, match="has no mha_batch_prefill_func: the package is another than its metadata says"):
        AiterFaBackend.validate_configuration(device("gfx942"), config())


@pytest.mark.torch
def test_a_kernel_that_cannot_be_compiled_is_an_environment_failure(library: Library) -> None:
    """The library ends the process there; here it is a reason, in `prepare` and in a request."""
    from hardpoint_aiter.backend import AiterFaBackend
    from hardpoint_aiter.mla import AiterMlaBackend
    from hardpoint_aiter.unified import AiterUnifiedBackend

    library.kernels.FAILURE = SystemExit("[aiter] build [mha_batch_prefill] under /opt failed !!!!!!")
    for backend, asked in (
        (AiterFaBackend, config()),
        (AiterUnifiedBackend, config()),
        (AiterMlaBackend, config(**SIZES)),
    ):
        with pytest.raises(OSError, match=r"cannot be compiled: \[aiter\] build .* failed") as caught:
            backend.prepare(asked, "cpu")
        assert isinstance(caught.value.__cause__, SystemExit)
