"""The matrix: devices by layers, as data, as a table and as a page in a real browser."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from hardpoint.cli._html import render
from hardpoint.cli._matrix import TYPICAL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.conftest import Command
    from tests.plugins import Site

TWO = """
def chip(index, version):
    capability = DeviceCapability.parse(version, runtime="chip")
    return Device(index=index, name=f"Chip <{version}>", capability=capability)
return Detection.usable([chip(0, "8.0"), chip(1, "9.0"), chip(2, "8.0")])
"""


@pytest.fixture
def mixed(site: Site) -> Site:
    """Two kinds of devices, of which only the newer runs the better backend, which never does windows."""
    site.platform(
        "chip", detect=TWO, priorities="BackendPriority('fast', 'best'), BackendPriority('slow', 'everywhere')"
    )
    new = "if device_capability.version < (9, 0):\n    return [Reason(code='capability', message='needs 9.0 & <more>')]"
    site.backend("fast", validate=f"{new}\nreturn ['no windows'] if config.sliding_window else []")
    site.backend("slow")
    return site


def test_each_device_gets_its_own_backend(mixed: Site, hardpoint_command: Command) -> None:
    """Alike devices are one row; a refusal on one device does not cost the other."""
    data = hardpoint_command("matrix", "--json").json()
    assert [item["indices"] for item in data["devices"]] == [[0, 2], [1]]
    assert [item["label"] for item in data["configs"]] == [label for label, _ in TYPICAL]
    found = {
        (cell["device"], data["configs"][cell["config"]]["label"]): cell["selection"]["backend"]
        for cell in data["cells"]
    }
    assert (found[0, "Decoder"], found[1, "Decoder"], found[1, "Window and sinks"]) == ("slow", "fast", "slow")
    assert found[1, "Latent (MLA)"] is None
    text = hardpoint_command("matrix").out
    assert re.search(r"Decoder +slow +fast\n", text)


def test_one_layer_of_ones_own(mixed: Site, hardpoint_command: Command) -> None:
    """The options of a layer, or a model, instead of the usual set; an option without a shape changes that set."""
    data = hardpoint_command("matrix", "--head-size", "40", "--num-heads", "2", "--backend", "slow", "--json").json()
    assert [item["fields"]["head_size"] for item in data["configs"]] == [40]
    assert {cell["selection"]["backend"] for cell in data["cells"]} == {"slow"}
    data = hardpoint_command("matrix", "--dtype", "float16", "--json").json()
    assert {item["dtype"] for item in data["configs"]} == {"float16"}


class _Page(HTMLParser):
    """What a page loads from elsewhere, and whether its elements close."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.loads += [value for name in ("src", "href", "action") if (value := values.get(name))]
        if tag not in ("meta", "link", "input", "br", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_stands_alone(mixed: Site, hardpoint_command: Command, tmp_path: Path) -> None:
    """Well-formed, nothing from elsewhere, every cell in the markup itself, nothing of a plugin's text is markup."""
    file = tmp_path / "matrix.html"
    assert hardpoint_command("matrix", "--html", str(file)).code == 0
    text = file.read_text(encoding="utf-8")
    page = _Page()
    page.feed(text)
    assert page.open == []
    assert all(item.startswith("data:") for item in page.loads)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert "@TITLE@" not in text
    assert text.count("<td>") == 2 * len(TYPICAL)
    assert 'aria-label="2 × Chip &lt;8.0&gt;, Decoder: slow' in text
    assert "<more>" not in text
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert found
    data = json.loads(found[1])
    reasons = [reason["message"] for item in data["cells"][0]["candidates"] for reason in item["reasons"]]
    assert "needs 9.0 & <more>" in reasons


def test_the_page_of_nothing(site: Site, hardpoint_command: Command, tmp_path: Path) -> None:
    """Without a platform there is a page too, which says what is wrong."""
    file = tmp_path / "matrix.html"
    assert hardpoint_command("matrix", "--html", str(file)).code == 1
    assert 'class="problems"' in file.read_text(encoding="utf-8")


def test_the_page_on_standard_output(
    mixed: Site, hardpoint_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dash writes the same page there and nothing beside it; no file of that name; an error in its place."""
    file = tmp_path / "matrix.html"
    hardpoint_command("matrix", "--html", str(file))
    monkeypatch.chdir(tmp_path)
    shown = hardpoint_command("matrix", "--html", "-")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out == file.read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".html" or path.name == "-"] == ["matrix.html"]
    refused = hardpoint_command("matrix", "--html", "-", "--simulate", "nonsense")
    assert (refused.code, refused.out) == (2, "")
    assert "nonsense" in refused.err


def test_a_page_that_cannot_be_written(mixed: Site, hardpoint_command: Command) -> None:
    """The path and the reason."""
    shown = hardpoint_command("matrix", "--html", "/nowhere/at/all.html")
    assert shown.code == 2
    assert "No such file or directory" in shown.err
    assert "The page" not in shown.out


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real browser without a window."""
    selenium = pytest.importorskip("selenium.webdriver")
    from selenium.webdriver.chrome.service import Service

    options = selenium.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--window-size=1300,900",
        "--disable-dev-shm-usage",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = selenium.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
    yield opened
    opened.quit()


@pytest.fixture
def page(mixed: Site, hardpoint_command: Command, tmp_path: Path, browser: Any) -> Any:
    """The matrix's page, opened."""
    file = tmp_path / "matrix.html"
    hardpoint_command("matrix", "--html", str(file))
    browser.get(file.as_uri())
    return browser


@pytest.mark.browser
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_in_a_real_browser(page: Any) -> None:
    """It loads without errors, filters, opens a cell with its reasons by mouse and by keys, and closes it again."""

    def all_of(selector: str) -> list[Any]:
        found: list[Any] = page.find_elements("css selector", selector)
        return found

    def shown(selector: str) -> list[Any]:
        return [item for item in all_of(selector) if item.is_displayed()]

    def choose(name: str, value: str) -> None:
        script = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input', {bubbles: true}))"
        page.execute_script(script, all_of(f"#{name}")[0], value)

    assert page.get_log("browser") == []
    assert len(shown("tbody tr")) == 2
    assert all_of("#status")[0].text == f"2 of 2 devices, {len(TYPICAL)} of {len(TYPICAL)} layers"

    all_of("#device")[0].send_keys("8.0")
    assert [row.find_element("css selector", "th").text.splitlines()[0] for row in shown("tbody tr")] == [
        "2 × Chip <8.0>"
    ]
    all_of("#device")[0].clear()
    all_of("#device")[0].send_keys(" ")
    assert len(shown("tbody tr")) == 2
    choose("kind", "mla_attention")
    assert [head.text.splitlines()[0] for head in shown("thead th")] == ["Device", "Latent (MLA)"]
    choose("kind", "")

    shown("td button")[0].click()
    dialog = all_of("dialog")[0]
    assert dialog.is_displayed()
    assert "2 × Chip <8.0>, Decoder: slow" in dialog.text
    assert "needs 9.0 & <more>" in dialog.text
    assert all_of("dialog img, dialog more") == []
    all_of("dialog .close")[0].click()
    assert not dialog.is_displayed()

    first = shown("td button")[0]
    page.execute_script("arguments[0].focus()", first)
    keys = "\ue014"  # the right arrow
    first.send_keys(keys)
    assert page.switch_to.active_element == shown("td button")[1]
    page.switch_to.active_element.send_keys("\ue007")  # enter
    assert dialog.is_displayed()
    page.switch_to.active_element.send_keys("\ue00c")  # escape
    assert not dialog.is_displayed()
    assert page.switch_to.active_element == shown("td button")[1]

    # One stop of the tabulator for the table, wherever the filters leave it.
    assert len([item for item in all_of("#matrix td button") if item.get_attribute("tabindex") == "0"]) == 1
    page.switch_to.active_element.send_keys("\ue010")  # end
    assert page.switch_to.active_element == shown("td button")[len(TYPICAL) - 1]
    page.switch_to.active_element.send_keys("\ue011")  # home
    assert page.switch_to.active_element == shown("td button")[0]
    choose("kind", "mla_attention")
    assert [item for item in shown("td button") if item.get_attribute("tabindex") == "0"] == shown("td button")[:1]
    page.find_element("css selector", "[type=reset]").click()
    assert len(shown("thead th")) == len(TYPICAL) + 1

    legend = next(item for item in all_of(".legend button") if item.text.startswith("fast"))
    legend.click()
    assert legend.get_attribute("aria-pressed") == "true"
    assert len(all_of("td button.dimmed")) == len(
        [item for item in all_of("td button") if item.text.splitlines()[0] != "fast"]
    )
    legend.click()
    assert all_of("td button.dimmed") == []

    def background() -> str:
        text: str = page.execute_script("return getComputedStyle(document.body).backgroundColor")
        return text

    before = background()
    all_of("#theme")[0].click()
    assert background() != before
    assert page.get_log("browser") == []


def test_render_needs_no_device() -> None:
    """A matrix of nothing is a page too."""
    data = {
        "hardpoint": "0",
        "source": {"kind": "live", "text": "this machine"},
        "depth": "loaded",
        "hints": [],
        "devices": [],
        "configs": [],
        "cells": [],
    }
    assert "<tbody>" in render(data)
