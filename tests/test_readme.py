"""The README cannot rot: its program runs, its output is what the program prints, its settings are the settings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import hardpoint
from hardpoint._settings import DESCRIPTIONS

README = Path(__file__).parent.parent / "README.md"

pytestmark = pytest.mark.checkout


def block(language: str) -> str:
    """The README's block of a language."""
    found = re.search(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    return found[1]


@pytest.mark.torch
@pytest.mark.plugins
def test_the_program_prints_what_the_readme_shows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Line by line, with the two plugins that it names; of the others, which may be installed here, nothing is said."""
    for name in DESCRIPTIONS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HARDPOINT_PLUGINS", "hardpoint-cpu,hardpoint-torch-sdpa")
    hardpoint.reset()
    exec(compile(block("python"), str(README), "exec"), {})
    others = ("HARDPOINT_PLUGINS", ": not installed: ")

    def of_those_two(text: str) -> list[str]:
        return [line for line in text.splitlines() if not any(word in line for word in others)]

    assert of_those_two(capsys.readouterr().out) == of_those_two(block("text"))
    hardpoint.reset()


def test_every_setting_is_documented() -> None:
    """The table names each variable, and no other."""
    named = set(re.findall(r"`(HARDPOINT_[A-Z_]+)`", README.read_text(encoding="utf-8")))
    assert named == set(DESCRIPTIONS)


def test_what_the_readme_links_to_is_there() -> None:
    """No link leads nowhere."""
    for target in re.findall(r"\]\(([^)#]+)\)", README.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (README.parent / target).exists(), target
