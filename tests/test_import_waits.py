"""What a fork waits for: imports of threads that resolve or select, and no longer than it has to."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from hardpoint._flight import SingleFlight, at_work, import_gate
from hardpoint.errors import HardpointError

if TYPE_CHECKING:
    from pathlib import Path


def test_an_import_of_a_thread_at_work_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it lasts, and from another thread only; somebody else's import of something else is not waited for."""
    (tmp_path / "slow_module_of_a_test.py").write_text(
        "import sys\nstarted, leave = sys.modules['__main__'].__dict__['events_of_a_test']\n"
        "started.set()\nleave.wait(30)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for is_at_work in (False, True):
        started, leave = threading.Event(), threading.Event()
        monkeypatch.setitem(sys.modules["__main__"].__dict__, "events_of_a_test", (started, leave))

        def load(is_at_work: bool = is_at_work) -> None:
            if is_at_work:
                with at_work:
                    __import__("slow_module_of_a_test")
            else:
                __import__("slow_module_of_a_test")

        thread = threading.Thread(target=load)
        thread.start()
        assert started.wait(30)
        assert at_work.imports_elsewhere() is is_at_work
        at_work.wait_for_imports(time.monotonic() + 0.01)
        leave.set()
        thread.join(30)
        assert not at_work.imports_elsewhere()
        del sys.modules["slow_module_of_a_test"]


def test_the_gate_counts_nested_imports() -> None:
    """A plugin whose import loads another plugin leaves the gate once it is through with both."""
    with import_gate:
        with import_gate:
            pass
        import_gate.after_fork_in_child()
    with import_gate, at_work, at_work:
        at_work.after_fork_in_child()


def test_a_child_forgets_calls_of_threads_that_it_does_not_have() -> None:
    """And keeps its own, whose waiters are gone."""
    flight: SingleFlight[int] = SingleFlight()
    started, leave = threading.Event(), threading.Event()

    def slow() -> int:
        started.set()
        leave.wait(30)
        return 1

    def refuse(text: str) -> HardpointError:
        return HardpointError(text)

    def ask(compute: object, key: str) -> int:
        return flight.run(key, compute, timeout_seconds=30, reentered=refuse, timed_out=refuse)  # type: ignore[arg-type]

    thread = threading.Thread(target=ask, args=(slow, "theirs"))
    thread.start()
    assert started.wait(30)

    def ours() -> int:
        flight.note_progress("ours", "working")
        flight.note_progress("nobody's", "nothing")
        assert flight.in_progress_here("ours") == "working"
        assert flight.in_progress_here("theirs") is None
        flight.forget_other_threads()
        # As in the child: theirs is led anew, ours is still ours.
        assert ask(lambda: 2, "theirs") == 2
        with pytest.raises(HardpointError, match="working"):
            ask(lambda: 3, "ours")
        return 4

    assert ask(ours, "ours") == 4
    leave.set()
    thread.join(30)
