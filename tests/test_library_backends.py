"""FlashAttention, FlashInfer and AITER through the whole selection: from metadata to a chosen class."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

import hardpoint
from hardpoint import Outcome
from hardpoint.errors import BackendUnavailableError, NoBackendError
from tests.kernel_library import Library, Recorded, forget
from tests.plugins import Site, config, usable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.plugins, pytest.mark.torch, pytest.mark.checkout]

BACKENDS = {
    "flash_attn": ("flash_attn", "flash_attn", "cuda", "9.0", "flash_attn"),
    "flash_attn_mla": ("flash_attn", "flash_attn_3", "cuda", "9.0", "flash_attn_interface"),
    "flashinfer": ("flashinfer", "flashinfer", "cuda", "9.0", "flashinfer"),
    "flashinfer_mla": ("flashinfer", "flashinfer", "cuda", "9.0", "flashinfer"),
    "aiter_fa": ("aiter", "aiter", "rocm", "gfx942", "aiter"),
    "aiter_unified": ("aiter", "aiter", "rocm", "gfx942", "aiter"),
    "aiter_mla": ("aiter", "aiter", "rocm", "gfx942", "aiter"),
}
"""Folder of the plugin, signature file, platform, device, and the module that is heavy."""
LATENT = {"kind": "mla_attention", "head_size": 576, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_heads": 16}


def asked(name: str, **changes: Any) -> hardpoint.AttentionConfig:
    """What the backend takes, but for the changes."""
    size = 64 if name == "aiter_unified" else 256
    base: dict[str, Any] = {"head_size": 64, "num_heads": 16, "dtype": "bfloat16", "block_size": size}
    return config(**{**base, **(LATENT if name.endswith("_mla") else {}), **changes})


@pytest.fixture
def machine(site: Site, request: pytest.FixtureRequest) -> Iterator[Callable[..., Library | None]]:
    """A factory: a platform of the backend's name with one device, its plugin, and its library unless it is None."""
    root = request.config.rootpath

    def build(name: str, *, library: bool = True, version: str | None = None, device: str = "") -> Library | None:
        plugin, signatures, platform, usual, _ = BACKENDS[name]
        device = device or usual
        detect = usable(device, runtime=platform)
        if platform == "rocm":
            detect = (
                "return Detection.usable([Device(index=0, name='Fake', physical_id=0, "
                f"capability=DeviceCapability(runtime='rocm', arch={device!r}))])"
            )
        site.platform(platform, detect=detect, priorities=f"BackendPriority({name!r}, 'best', 'hardpoint-{plugin}')")
        site.allow(f"hardpoint-{plugin.replace('_', '-')}", f"fake-{platform}")
        folder = root / "plugins" / "backends" / plugin / "tests"
        found = None
        if library:
            recorded = Recorded.read(folder / "signatures" / f"{signatures}.json")
            found = Library(site.folder, recorded, folder / f"fake_{plugin}.py", version)
        for module in [item for item in sys.modules if item.startswith(f"hardpoint_{plugin}.")]:
            package, _, leaf = module.rpartition(".")
            if leaf not in ("plugin", "_support"):
                # The package's attribute comes back with the module: it would else be the next import's for good.
                site.monkeypatch.setattr(sys.modules[package], leaf, sys.modules[module])
                site.monkeypatch.delitem(sys.modules, module)
        hardpoint.reset()
        return found

    yield build
    forget(site.folder)


def heavy(name: str) -> bool:
    """Whether the backend's own heavy module, or its library, has been imported."""
    plugin, _, _, _, library = BACKENDS[name]
    ours = [item for item in sys.modules if item.startswith(f"hardpoint_{plugin}.")]
    return library in sys.modules or any(item.rpartition(".")[2] not in ("plugin", "_support") for item in ours)


@pytest.mark.parametrize("name", BACKENDS)
def test_chosen_with_its_library(machine: Callable[..., Library | None], name: str) -> None:
    """Found by metadata, accepted by declared support, imported, validated."""
    machine(name)
    selection = hardpoint.current_platform().select_backend(asked(name))
    assert selection.backend == name
    assert heavy(name)
    assert selection.layout == selection.load().kv_cache_spec(asked(name)).layout


@pytest.mark.parametrize("name", BACKENDS)
def test_without_its_library_it_is_not_installed(machine: Callable[..., Library | None], name: str) -> None:
    """The candidate stands in the table with the command that would help; nothing of it is imported."""
    machine(name, library=False)
    with pytest.raises(NoBackendError) as caught:
        hardpoint.current_platform().select_backend(asked(name))
    found = next(item for item in caught.value.candidates if item.name == name)
    assert found.outcome is Outcome.NOT_INSTALLED
    assert [reason.code for reason in found.reasons] == ["missing_dependency"]
    assert str(found.reasons[0].remedy).startswith("pip install ")
    assert not heavy(name)


@pytest.mark.parametrize("name", BACKENDS)
def test_an_old_library_says_what_was_found(machine: Callable[..., Library | None], name: str) -> None:
    """Its version is compared before anything is imported."""
    machine(name, version="0.0.1")
    with pytest.raises(BackendUnavailableError, match=r"found [\w-]+ 0\.0\.1, needs .*>="):
        hardpoint.current_platform().select_backend(asked(name), name)
    assert not heavy(name)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("path", ["scan", "explicit", "list"])
def test_a_rejected_backend_is_never_imported(machine: Callable[..., Library | None], name: str, path: str) -> None:
    """All reasons at once, whichever way it was asked for; its heavy module stays on the disk."""
    machine(name)
    requests: dict[str, dict[str, Any]] = {"scan": {}, "explicit": {"requested": name}, "list": {"requested": [name]}}
    request = requests[path]
    refused = asked(name, dtype="float64", batch_invariant=True, attention_type="encoder_decoder", sinks=True)
    with pytest.raises(ValueError, match=r"dtype=float64; accepts") as caught:
        hardpoint.current_platform().select_backend(refused, **request)
    assert "sinks=True; accepts False" in str(caught.value) or name == "aiter_unified"
    assert not heavy(name)


@pytest.mark.parametrize("name", BACKENDS)
def test_another_device_rejects_it_before_import(machine: Callable[..., Library | None], name: str) -> None:
    """A device that its kernels are not built for: by capability and by architecture."""
    machine(name, device="7.5" if BACKENDS[name][2] == "cuda" else "gfx906")
    with pytest.raises(ValueError, match=r"its kernels are built for .*, not for (sm_75|gfx906)"):
        hardpoint.current_platform().select_backend(asked(name))
    assert not heavy(name)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_broken_library_is_a_recorded_failure(
    machine: Callable[..., Library | None], name: str, tmp_path: Path
) -> None:
    """A shared object that cannot be loaded is the machine's fault, with its own words."""
    library = machine(name)
    assert library is not None
    top = BACKENDS[name][4]
    (library.site / top / "__init__.py").write_text("raise ImportError('libcuda.so.1: cannot open shared object')")
    with pytest.raises(BackendUnavailableError, match=r"ImportError: libcuda\.so\.1: cannot open shared object"):
        hardpoint.current_platform().select_backend(asked(name), name)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_release_with_other_arguments_is_a_reason(machine: Callable[..., Library | None], name: str) -> None:
    """Newer than the backend, within its range: what it would be called with is compared before it is called."""
    library = machine(name)
    assert library is not None
    for file in library.site.joinpath(BACKENDS[name][4]).rglob("__init__.py"):
        file.write_text(file.read_text().replace("sm_scale", "factor").replace("softmax_scale", "factor"))
    with pytest.raises(
        BackendUnavailableError, match=r"takes no (softmax_scale|sm_scale): the package is of a release"
    ):
        hardpoint.current_platform().select_backend(asked(name), name)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_library_that_does_not_start_is_a_recorded_failure(machine: Callable[..., Library | None], name: str) -> None:
    """FlashInfer says RuntimeError where its parts are of two versions, AITER KeyError for an architecture."""
    library = machine(name)
    assert library is not None
    file = library.site / BACKENDS[name][4] / "__init__.py"
    for raised in ("RuntimeError('flashinfer-cubin version')", "KeyError('gfx1250')", "AttributeError('no torch.xyz')"):
        file.write_text(f"raise {raised}")
        hardpoint.reset()
        kind, _, text = raised.partition("('")
        with pytest.raises(BackendUnavailableError, match=rf"does not load: {kind}: '?{text[:-2]}"):
            hardpoint.current_platform().select_backend(asked(name), name)
