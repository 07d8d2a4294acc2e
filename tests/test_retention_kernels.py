"""Failing kernel imports keep nothing alive."""

from __future__ import annotations

import gc
import sys
import types
import weakref
from typing import TYPE_CHECKING, Any

import pytest

import hardpoint
from hardpoint._kernels import KernelModule
from tests.native import KernelPlatform, Site

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("young_objects")

FAILING_IMPORTS = 10_000
# A module whose raising frame holds an object that the test watches.
HOLDING = """
import hardpoint, hardpoint.errors, hardpoint_test_watch as watch
def fail():
    local = watch.Local()
    watch.add(local)
    raise {error}
{call}
"""
ERRORS = [
    "ImportError('built for another torch')",
    "OSError('no driver')",
    "hardpoint.EnvironmentFailure('no GPU')",
    "hardpoint.errors.ContractError('wrong hook')",
    "ZeroDivisionError('tiles')",
    "KeyboardInterrupt()",
]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A folder on the import path."""
    return Site(tmp_path, monkeypatch)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Any]]:
    """Weak references to the locals of raising frames."""
    found: list[weakref.ref[Any]] = []
    module: Any = types.ModuleType("hardpoint_test_watch")
    module.Local = type("Local", (), {})
    module.add = lambda local: found.append(weakref.ref(local))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return found


def swallow(action: Callable[[], object]) -> None:
    """Call, and drop whatever it raises, as an engine's start-up does that goes on without."""
    try:
        action()
    except BaseException:  # noqa: BLE001  # that it raises or not is another test's business
        return


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("place", ["start-up", "setup", "operator"])
@pytest.mark.parametrize("how", ["scan", "strict", "inspecting", "get_operator"])
def test_no_local_of_a_raising_frame_survives(
    site: Site, watched: list[weakref.ref[Any]], error: str, place: str, how: str
) -> None:
    """Once the call is over, whatever failed and whoever asked, the frame is gone; platform and report stay."""
    name = site.module(HOLDING.format(error=error, call="fail()" if place == "start-up" else ""))
    module = KernelModule(name=name, required=True)
    if place == "setup":
        module = KernelModule(name=name, required=True, setup=f"{name}:fail")
    elif place == "operator":
        elsewhere = site.module(HOLDING.format(error=error, call="fail()"))
        module = KernelModule(name=name, required=True, operators=(f"{elsewhere}:fast",))
    platform = KernelPlatform(module, strict=how == "strict")
    calls: dict[str, Callable[[], object]] = {
        "inspecting": platform.inspect,
        "get_operator": lambda: platform.get_operator(name, "fast"),
    }
    swallow(calls.get(how, platform.import_kernels))
    gc.collect()
    assert len(watched) == 1
    assert watched[0]() is None


def test_a_platform_with_failed_kernels_is_freed(site: Site) -> None:
    """Nothing of ours holds a platform whose import has failed."""
    platform = KernelPlatform(KernelModule(name=site.module("raise ImportError('no')")))
    platform.import_kernels()
    seen = weakref.ref(platform)
    del platform
    gc.collect()
    assert seen() is None


@pytest.mark.long
def test_ten_thousand_failing_imports_keep_nothing(site: Site) -> None:
    """Absent, cut off, broken, missing a dependency or an operator, over and over: objects and memory stay flat."""
    hardpoint.reset()
    cut_off, _ = site.extension(b"\x7fELF")
    modules = (
        KernelModule(name="nowhere._ext", required=True),
        KernelModule(name=cut_off),
        KernelModule(name=site.module("raise ImportError('built for another torch')")),
        KernelModule(name=site.module("import nowhere_at_all")),
        KernelModule(name=site.module(""), operators=("fast",)),
    )

    def fail(rounds: int) -> None:
        for _ in range(rounds):
            assert not KernelPlatform(*modules).import_kernels().ok

    def measure() -> tuple[int, int]:
        gc.collect()
        return len(gc.get_objects()), sys.getallocatedblocks()

    fail(100)
    objects, blocks = measure()
    fail(FAILING_IMPORTS // len(modules))
    more_objects, more_blocks = measure()
    # One object kept per import would be 10,000; pytest itself and lazy caches account for a few.
    assert more_objects - objects < 100
    assert more_blocks - blocks < 500
