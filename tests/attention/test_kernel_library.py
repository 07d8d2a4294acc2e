"""What a kernel library raises and lacks, before it is called."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from hardpoint._importing import import_library
from hardpoint.attention._kernel_library import load_function
from hardpoint.errors import EnvironmentFailure

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a module ``kernels_of_a_test``, on the path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "kernels_of_a_test", raising=False)
    return tmp_path / "kernels_of_a_test.py"


@pytest.mark.parametrize("raised", ["RuntimeError('a')", "KeyError('a')", "AttributeError('a')", "AssertionError('a')"])
def test_whatever_its_import_raises_is_the_environments(module: Path, raised: str) -> None:
    """With the type and the words that it raised, and that as the cause."""
    module.write_text(f"raise {raised}")
    with pytest.raises(EnvironmentFailure, match=rf"does not load: {raised.partition('(')[0]}: ") as caught:
        import_library("kernels_of_a_test")
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("raised", ["ImportError", "OSError", "RecursionError", "MemoryError", "KeyboardInterrupt"])
def test_what_the_rule_knows_already_stays_itself(module: Path, raised: str) -> None:
    """Failures of the environment keep their type; memory and interrupts are nobody's configuration."""
    module.write_text(f"raise {raised}('x')")
    with pytest.raises(BaseException, match="x") as caught:
        import_library("kernels_of_a_test")
    assert type(caught.value).__name__ == raised


def test_functions_methods_and_their_arguments(module: Path) -> None:
    """By name; a missing one, and missing arguments, are reasons; what takes anything is taken."""
    module.write_text(
        "def one(a, *, scale): pass\n"
        "def any_of_them(**more): pass\n"
        "class Wrapper:\n"
        "    def __init__(self, layout): pass\n"
        "    def plan(self, scale): pass\n"
        "compiled = vars\n"
    )
    name = "kernels_of_a_test"
    assert load_function(name, "one", ("a", "scale"))(1, scale=2) is None
    for function in ("any_of_them", "Wrapper.plan", "compiled"):
        load_function(name, function, ("scale",))
    load_function(name, "Wrapper", ("layout",))
    with pytest.raises(EnvironmentFailure, match=r"has no two: the package is another than its metadata says"):
        load_function(name, "two")
    with pytest.raises(EnvironmentFailure, match=r"has no Wrapper\.run"):
        load_function(name, "Wrapper.run")
    with pytest.raises(EnvironmentFailure, match=r"kernels_of_a_test\.one takes no softcap, window: the package is of"):
        load_function(name, "one", ("softcap", "scale", "window"))
