"""The sections that plugins add to the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import hardpoint

if TYPE_CHECKING:
    from tests.plugins import Site

TOP = "from hardpoint.hookspecs import ReportSection"


@pytest.mark.parametrize(
    ("answer", "titles"),
    [
        ("None", []),
        ("ReportSection(title='One', lines=())", ["One"]),
        (
            "[ReportSection(title='One', lines=(('a', 1),)), ReportSection(title='Two', lines=[['b', None]])]",
            ["One", "Two"],
        ),
    ],
)
def test_none_one_or_several(site: Site, answer: str, titles: list[str]) -> None:
    """A plugin returns what it has; values are shown as text."""
    hook = f"@hookimpl\ndef hardpoint_report(self, machine):\n    return {answer}"
    site.platform("fake", plugin_top=TOP, hooks=hook)
    sections = [item for item in hardpoint.inspect().as_dict()["sections"] if item["plugin"] == "platform/fake"]
    assert [item["title"] for item in sections] == titles
    assert all(isinstance(text, str) for item in sections for line in item["lines"] for text in line)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("'text'", "expected a list of ReportSection"),
        ("[ReportSection(title='One', lines=('ab', 'c'))]", "expected (label, value)"),
        ("[ReportSection(title='One', lines=((1, 2, 3),))]", "expected (label, value)"),
    ],
)
def test_a_wrong_answer_is_a_line(site: Site, answer: str, said: str) -> None:
    """It names the plugin and what was expected; the others' sections stay."""
    hook = "@hookimpl\ndef hardpoint_report(self, machine):\n    return "
    site.platform("fake", plugin_top=TOP, hooks=hook + answer)
    site.backend("good", plugin_top=TOP, hooks=f"{hook}ReportSection(title='Clocks', lines=(('boost', '2 GHz'),))")
    found = {item["plugin"]: item for item in hardpoint.inspect().as_dict()["sections"]}
    assert said in found["platform/fake"]["error"]
    assert found["backend/good"]["lines"] == [["boost", "2 GHz"]]
