"""The repository's files agree with one another."""

from __future__ import annotations

import configparser
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.checkout

ROOT = Path(__file__).resolve().parent.parent
PLUGINS = {file.parent.name: file.parent for file in sorted(ROOT.glob("plugins/*/*/pyproject.toml"))}
GROUPS = {"platforms": "hardpoint.platforms", "backends": "hardpoint.backends"}


def project(folder: Path) -> dict[str, Any]:
    """One distribution's pyproject."""
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tox() -> configparser.ConfigParser:
    """The sections of tox.ini."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "tox.ini", encoding="utf-8")
    return parser


def plugin_section(tox: configparser.ConfigParser) -> set[str]:
    """The names in the one section that serves plugins."""
    (names,) = (match.group(1) for name in tox.sections() if (match := re.fullmatch(r"testenv:\{(.*)\}", name)))
    return {name.strip() for name in names.split(",")}


def test_plugin_folders_are_unique() -> None:
    """No platform and backend share a folder name, so an environment's name means one plugin."""
    folders = [folder for folder in ROOT.glob("plugins/*/*") if folder.is_dir()]
    assert len(folders) == len(PLUGINS)


def test_tox_has_one_environment_per_plugin(tox: configparser.ConfigParser) -> None:
    """The section of all plugins in tox.ini names exactly the folders under plugins."""
    assert plugin_section(tox) == set(PLUGINS)


def test_tox_runs_every_environment_by_default(tox: configparser.ConfigParser) -> None:
    """The list of environments is every plugin and every section with a name of its own."""
    listed = {name.strip() for name in tox["tox"]["env_list"].split(",")}
    own = {name.removeprefix("testenv:") for name in tox.sections() if re.fullmatch(r"testenv:\w+", name)}
    assert own == {"core", "all", "min", "browser", "wheel", "lint", "types"}
    assert listed == set(PLUGINS) | own


def test_tox_refuses_other_names(tox: configparser.ConfigParser) -> None:
    """An environment that no section names ends in an error, not in an empty success."""
    assert "SystemExit" in tox["testenv"]["commands"]


def test_tox_uses_no_factors(tox: configparser.ConfigParser) -> None:
    """No line of tox.ini is conditional on a part of a name, since one plugin's name may contain another's."""
    conditional = re.compile(r"^\s*[!\w{},-]+:\s", re.MULTILINE)
    assert [name for name in tox.sections() for value in tox[name].values() if conditional.search(value)] == []


def test_mypy_knows_every_source_folder() -> None:
    """The path of mypy lists every distribution's src, so each module has one name."""
    path = project(ROOT)["tool"]["mypy"]["mypy_path"]
    sources = {f"$MYPY_CONFIG_FILE_DIR/{folder.relative_to(ROOT).as_posix()}/src" for folder in PLUGINS.values()}
    others = ("src", "tools", "benchmarks", "examples/vendor_plugin/src")
    assert set(path) == sources | {f"$MYPY_CONFIG_FILE_DIR/{folder}" for folder in others}


@pytest.mark.parametrize("name", PLUGINS)
def test_plugin_folder_is_complete(name: str) -> None:
    """A plugin's folder has all that a distribution of its own needs."""
    folder = PLUGINS[name]
    for needed in ("README.md", "LICENSE", f"src/hardpoint_{name}/__init__.py", f"src/hardpoint_{name}/py.typed"):
        assert (folder / needed).is_file(), needed
    assert list(folder.glob("tests/**/test_*.py"))
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize("name", PLUGINS)
def test_plugin_is_named_after_its_folder(name: str) -> None:
    """Distribution, package and entry point carry the folder's name, the group its parent's."""
    folder = PLUGINS[name]
    table = project(folder)["project"]
    assert table["name"] == f"hardpoint-{name.replace('_', '-')}"
    tool = project(folder)["tool"]
    built = tool["hatch"]["build"]["targets"]["wheel"] if "hatch" in tool else tool["scikit-build"]["wheel"]
    assert built["packages"] == [f"src/hardpoint_{name}"]
    (points,) = (table["entry-points"][group] for group in table["entry-points"] if group == GROUPS[folder.parent.name])
    assert all(target.startswith(f"hardpoint_{name}.") for target in points.values())


@pytest.mark.parametrize("name", PLUGINS)
def test_plugin_configures_no_tool(name: str) -> None:
    """Only the build is configured in a plugin's pyproject: a pytest table there would make it another root."""
    assert set(project(PLUGINS[name])["tool"]) in ({"hatch"}, {"scikit-build"})
    strays = {"conftest.ini", "pytest.ini", "tox.ini", "setup.cfg", "ruff.toml", "mypy.ini", ".coveragerc"}
    assert [file.name for file in PLUGINS[name].rglob("*") if file.name in strays] == []


def test_distributions_share_what_they_must() -> None:
    """Python's floor, licence and build system (of those that are compiled: theirs) are the same everywhere."""
    core = project(ROOT)
    for folder in PLUGINS.values():
        other = project(folder)
        compiled = (folder / "CMakeLists.txt").exists()
        assert (other["build-system"] == core["build-system"]) is not compiled
        for key in ("requires-python", "license", "license-files"):
            assert other["project"][key] == core["project"][key], (folder.name, key)


def test_plugins_allow_this_core() -> None:
    """Every plugin declares the same range of hardpoint, and the version here lies in it."""
    specifiers = pytest.importorskip("packaging.specifiers")
    declared = {
        requirement.removeprefix("hardpoint")
        for folder in PLUGINS.values()
        for requirement in project(folder)["project"]["dependencies"]
        if re.match(r"hardpoint[<>=~! ]", requirement)
    }
    (only,) = declared
    assert project(ROOT)["project"]["version"] in specifiers.SpecifierSet(only)


def test_plugins_declare_each_dependency_alike() -> None:
    """One library has one range throughout the repository, but for torch: what a backend uses of it, differs."""
    ranges: dict[str, set[str]] = {}
    for folder in (ROOT, *PLUGINS.values()):
        for requirement in project(folder)["project"]["dependencies"]:
            name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
            ranges.setdefault(name, set()).add(requirement)
    assert all(re.fullmatch(r"torch>=[\d.]+", requirement) for requirement in ranges.pop("torch"))
    assert {name: found for name, found in ranges.items() if len(found) > 1} == {}


def test_core_depends_on_three_libraries() -> None:
    """The core needs pluggy, importlib-metadata and packaging at run time, and nothing else."""
    assert project(ROOT)["project"]["dependencies"] == ["pluggy>=1.7,<2", "importlib-metadata>=8", "packaging>=24"]


def test_versions_are_pinned_in_one_place() -> None:
    """An exact version of a library that constraints.txt pins stands in no other file that installs something."""
    pins = [line for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines() if "==" in line]
    assert "torch" in {pin.partition("==")[0] for pin in pins}
    installs = re.compile(r"\b(" + "|".join(re.escape(pin.partition("==")[0]) for pin in pins) + r")\s*==\s*\d")
    suspects = [
        *(ROOT / name for name in ("pyproject.toml", "tox.ini", "Makefile", ".ci/run")),
        *(folder / "pyproject.toml" for folder in PLUGINS.values()),
        *(file for file in (ROOT / "tools").iterdir() if file.is_file()),
    ]
    assert [str(file) for file in suspects if installs.search(file.read_text(encoding="utf-8"))] == []


def test_groups_are_constrained() -> None:
    """Every library that the repository installs for itself has its version in constraints.txt."""
    groups = project(ROOT)["dependency-groups"]
    pins = {line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()}
    assert {requirement for group in groups.values() for requirement in group} - pins == set()


def test_commands_can_be_run() -> None:
    """The scripts that make and continuous integration start are executable."""
    for name in (".ci/run", "tools/python"):
        assert (ROOT / name).stat().st_mode & 0o111, name


def test_readme_gives_the_two_commands() -> None:
    """The README names the two commands that set everything up."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text


def test_every_ignored_rule_has_a_reason() -> None:
    """Each rule of ruff that is switched off has its reason beside it."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    ignored = re.findall(r'^  "[A-Z]+\d*",?(.*)$', text, re.MULTILINE)
    assert ignored
    assert [line for line in ignored if not line.strip().startswith("# ")] == []
