"""The whole table of decisions stands in a file, and is what is decided now."""

from __future__ import annotations

import difflib
import importlib.util

import pytest

import hardpoint

pytestmark = [pytest.mark.plugins, pytest.mark.torch, pytest.mark.checkout]


def test_the_table_is_what_is_decided_now(pytestconfig: pytest.Config) -> None:
    """Device x packages x request; after a change that is meant, tools/selection_table.py writes it anew."""
    if not hasattr(hardpoint, "simulate"):
        pytest.skip("machines cannot be simulated yet")
    written = pytestconfig.rootpath / "tests" / "selection_table.txt"
    if not written.exists():
        pytest.skip("the table has not been written yet")
    spec = importlib.util.spec_from_file_location("selection_table", pytestconfig.rootpath / "tools/selection_table.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    found = list(tool.lines())
    diff = list(difflib.unified_diff(written.read_text().splitlines(), found, "the file", "now", lineterm="", n=0))
    assert not diff, "\n".join(diff[:40])
