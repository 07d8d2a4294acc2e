"""What torch says of its device, for the platforms whose device it is: asked of a torch that is there already."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hardpoint._start_method import forbidden_by_torch, has_torch_initialised, memory_held_by_torch


@pytest.fixture
def torch_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a module `torch` with such a `cuda` where an import would find it."""

    def put(**cuda: Any) -> None:
        module: Any = ModuleType("torch")
        module.cuda = SimpleNamespace(**{name: (lambda value=value: value) for name, value in cuda.items()})
        monkeypatch.setitem(sys.modules, "torch", module)

    return put


def test_without_torch_nothing_forbids(monkeypatch: pytest.MonkeyPatch) -> None:
    """None imported, or one whose import has not come to its devices: neither is imported for the question."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert (forbidden_by_torch("CUDA"), has_torch_initialised()) == (None, False)
    assert "torch" not in sys.modules
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert (forbidden_by_torch("CUDA"), has_torch_initialised()) == (None, False)


@pytest.mark.parametrize(
    ("cuda", "said"),
    [
        ({"is_initialized": False}, None),
        ({"is_initialized": True}, "torch has initialised HIP in this process"),
        (
            {"is_initialized": False, "_is_in_bad_fork": True},
            "this process was forked from one in which torch had initialised HIP",
        ),
    ],
)
def test_initialised_here_or_in_a_parent(torch_of: Any, cuda: dict[str, bool], said: str | None) -> None:
    """Either forbids a fork, in words of its own; a torch that has done nothing does not."""
    torch_of(**cuda)
    found = forbidden_by_torch("HIP")
    assert found == (None if said is None else ("spawn", said))


def test_memory_is_asked_of_an_initialised_torch_alone(torch_of: Any) -> None:
    """A device that has gone since is None, not an error."""

    def gone(index: int) -> int:
        raise RuntimeError(f"no device {index}")

    module: Any = SimpleNamespace(memory_reserved=lambda index: 100 + index)
    torch_of(is_initialized=False)
    assert memory_held_by_torch(lambda: module, 1) is None
    torch_of(is_initialized=True)
    assert memory_held_by_torch(lambda: module, 1) == 101
    module.memory_reserved = gone
    assert memory_held_by_torch(lambda: module, 1) is None
