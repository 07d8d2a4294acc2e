"""Nothing is retained: whatever failed, the frames that failed are gone once the call has returned."""

from __future__ import annotations

import gc
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

import hardpoint
from tests.plugins import Site, config

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("young_objects")

FIRST = "BackendPriority('first', 'fastest here'), BackendPriority('second', 'works everywhere')"

HOLDER = """
import weakref
import hardpoint._reasons
class Engine: pass
engines = hardpoint._reasons.__dict__.setdefault('engines_of_tests', [])
def fail(error):
    engine = Engine()
    engines.append(weakref.ref(engine))
    raise error
"""


@pytest.fixture
def engines() -> Any:
    """Weak references to a local of every frame that failed."""
    import hardpoint._reasons

    found = hardpoint._reasons.__dict__.setdefault("engines_of_tests", [])
    found.clear()
    yield found
    del hardpoint._reasons.__dict__["engines_of_tests"]


ERRORS = [
    "ImportError('x.so: undefined symbol')",
    "OSError(13, 'Permission denied', '/ro')",
    "ZeroDivisionError('bug')",
]
PLACES = ["detect", "activate", "load", "import", "validate", "prepare"]


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("explicit", [False, True])
def test_the_failing_frame_is_gone(
    site: Site, engines: list[weakref.ref[object]], error: str, place: str, explicit: bool
) -> None:
    """In every phase, for every kind of failure, recorded or raised and caught."""
    failing = f"fail({error})"
    vendor: dict[str, Any] = {}
    backend: dict[str, Any] = {}
    if place == "detect":
        vendor = {"plugin_top": HOLDER, "detect": failing}
    elif place == "activate":
        vendor = {"platform_top": f"{HOLDER}\n{failing}"}
    elif place == "load":
        backend = {"plugin_top": f"{HOLDER}\n{failing}"}
    elif place == "import":
        backend = {"top": f"{HOLDER}\n{failing}"}
    else:
        backend = {"top": HOLDER, place: failing}
    site.platform("vendor", priorities=FIRST, **vendor)
    site.platform("host", priorities=FIRST, rank="CPU")
    site.backend("first", **backend)
    site.backend("second")
    on_platform = place in ("detect", "activate")

    def ask() -> None:
        try:
            platform = hardpoint.resolve("vendor" if explicit and on_platform else None).platform
            platform.select_backend(config(), "first" if explicit and not on_platform else None, depth="ready")
        except (ValueError, ZeroDivisionError):
            return
        assert not explicit
        assert "ZeroDivision" not in error

    ask()
    gc.collect()
    assert engines
    assert [engine for engine in engines if engine() is not None] == []
    str(hardpoint.report())


def growth(ask: Callable[[], None], *, warm_up: int, count: int) -> tuple[int, int]:
    """How many objects and bytes `count` calls leave behind."""
    for _ in range(warm_up):
        ask()
    gc.collect()
    objects = len(gc.get_objects())
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(count):
            ask()
        gc.collect()
        return len(gc.get_objects()) - objects, tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


@pytest.mark.long
def test_ten_thousand_failing_selections_leave_nothing(site: Site) -> None:
    """Object count and memory stay flat, whether the failure is recorded or raised."""
    site.platform("fake", priorities=FIRST)
    site.backend("first", validate="raise OSError('libx.so: cannot open shared object file')")
    platform = hardpoint.current_platform()

    def ask() -> None:
        for requested in (None, "first"):
            try:
                platform.select_backend(config(), requested)
            except ValueError:
                continue
            pytest.fail("it was selected")

    objects, size = growth(ask, warm_up=50, count=5000)
    assert objects < 100
    assert size < 100_000


def test_failing_resolutions_leave_nothing(site: Site) -> None:
    """A failure is not kept."""
    site.platform("fake", detect="raise OSError('libx.so: cannot open shared object file')")

    def ask() -> None:
        with pytest.raises(ValueError, match="libx"):
            hardpoint.current_platform()

    objects, size = growth(ask, warm_up=50, count=1000)
    assert objects < 100
    assert size < 100_000


def test_distinct_selections_are_bounded(site: Site) -> None:
    """What is remembered of selections has a limit."""
    from hardpoint._selection_cache import REMEMBERED

    site.platform("fake", priorities=FIRST)
    site.backend("first")
    platform = hardpoint.current_platform()
    for number in range(1, REMEMBERED + 200):
        platform.select_backend(config(max_model_len=number), depth="static")
    assert len(platform._selections.made()) <= REMEMBERED
