"""The vendor of `examples/vendor_plugin`, installed with pip: alone, beside the CPU, broken, and gone again."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.distributions import copy_core
from tests.examples.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.examples.conftest import RunEngine

pytestmark = [
    pytest.mark.long,
    pytest.mark.torch,
    pytest.mark.model,
    pytest.mark.compiler,
    pytest.mark.skipif(find_spec("hatchling") is None, reason="needs hatchling, which builds the distribution"),
]

VENDOR = ROOT / "examples" / "vendor_plugin"
ASKED = ("--prompt", "the cat", "--prompt", "a longer prompt", "--max-tokens", "16", "--dtype", "float32")


class Environment:
    """A virtual environment with the core and this one's libraries, and none of this repository's plugins."""

    def __init__(self, folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
        self.python = folder / "venv" / "bin" / "python"
        script = "import sysconfig; print(sysconfig.get_path('purelib'))"
        self.site = Path(subprocess.check_output([self.python, "-c", script], text=True).strip())
        shared = folder / "shared"
        shared.mkdir()
        places = {Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("platlib"))}
        # Torch and what came with it may lie in a folder that several environments share.
        places |= {Path(spec.origin).parents[1] for spec in map(find_spec, ("torch", "numpy")) if spec and spec.origin}
        for place in sorted(places):
            for entry in place.iterdir():
                target = shared / entry.name
                if "hardpoint" not in entry.name and entry.suffix != ".pth" and not target.exists():
                    target.symlink_to(entry)
        copy_core(shared)
        (self.site / "shared.pth").write_text(f"{shared}\n")

    def pip(self, *arguments: str) -> None:
        """Run this Python's pip on the environment."""
        command = [sys.executable, "-m", "pip", "--python", str(self.python), "--disable-pip-version-check", "-q"]
        subprocess.run([*command, *arguments], check=True)

    def install(self) -> None:
        """Install the vendor's distribution, from its folder."""
        self.pip("install", "--no-deps", "--no-build-isolation", "--no-index", str(VENDOR))

    def run(self, command: Sequence[str], **variables: str | Path) -> subprocess.CompletedProcess[str]:
        """Run the environment's Python."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HARDPOINT_", "WHERROW_")) and name != "PYTHONPATH"
        }
        changed = {name: str(value) for name, value in variables.items()}
        return subprocess.run(
            [str(self.python), *command],
            capture_output=True,
            encoding="utf-8",
            check=False,
            env={**inherited, "OMP_NUM_THREADS": "1", **changed},
        )

    def engine(self, model: Path, *arguments: str, **variables: str | Path) -> subprocess.CompletedProcess[str]:
        """Run the example engine there."""
        return self.run([str(ROOT / "examples" / "tiny_engine"), "--model", str(model), *arguments], **variables)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the vendor's driver is installed: a device node, and the library."""
    root = tmp_path_factory.mktemp("driver")
    for name in ("dev", "lib"):
        (root / name).mkdir()
    text = "name=Wherrow W1\narch=w1\nuuid=WHR-0\nmemory_bytes=67108864\n"
    (root / "dev" / "wherrow0").write_text(text)
    command = ["cc", "-shared", "-fPIC", "-O2", "-pthread", "-o", str(root / "lib" / "libwherrow.so.1")]
    subprocess.run([*command, str(VENDOR / "driver" / "wherrow.c")], check=True)
    return root


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment in which the vendor's distribution is the only plugin."""
    environment = Environment(tmp_path_factory.mktemp("alone"))
    environment.install()
    return environment


@pytest.fixture(scope="module")
def cpu_text(model: Path) -> str:
    """What the engine writes on the CPU, with the plugins of this repository."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "tiny_engine"), "--model", str(model), *ASKED, "--platform", "cpu"],
        capture_output=True,
        encoding="utf-8",
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.plugins
def test_alone_it_writes_the_same_text_as_the_cpu(alone: Environment, driver: Path, model: Path, cpu_text: str) -> None:
    """With no other plugin, the engine runs on the vendor's device and writes what a CPU writes, greedily."""
    found = alone.engine(model, *ASKED, WHERROW_ROOT=driver)
    assert found.returncode == 0, found.stderr
    assert found.stdout == cpu_text
    last = found.stderr.splitlines()[-1]
    assert last.startswith("wherrow (Wherrow W1), float32, attention by wherrow_attention: chosen automatically")
    assert "WARNING" not in found.stderr


def test_alone_without_its_node_there_is_no_platform(alone: Environment, model: Path) -> None:
    """Where the device is not, nothing pretends to be one; the message says what was looked for."""
    found = alone.engine(model, *ASKED, WHERROW_ROOT="/nowhere")
    assert found.returncode == 1
    assert "no platform can be used here" in found.stderr
    assert "no device node /nowhere/dev/wherrow0" in found.stderr
    assert "Traceback" not in found.stderr


def test_a_full_device_is_one_message(alone: Environment, driver: Path, model: Path) -> None:
    """A cache that the device's memory does not hold beside the weights is refused with the numbers."""
    found = alone.engine(model, *ASKED, "--num-blocks", "16380", WHERROW_ROOT=driver)
    assert found.returncode == 1
    assert (
        "error: the device does not hold the weights and a cache of 16380 blocks: wherrow:0 is out of" in found.stderr
    )
    assert "Traceback" not in found.stderr


@pytest.mark.plugins
def test_beside_the_others_it_wins(
    alone: Environment, driver: Path, model: Path, run_engine: RunEngine, cpu_text: str
) -> None:
    """Among all plugins of this repository the vendor's platform is taken where its node is, also in a worker."""
    found = run_engine("--model", str(model), *ASKED, "--worker", path=str(alone.site), WHERROW_ROOT=str(driver))
    assert found.returncode == 0, found.stderr
    assert found.stdout == cpu_text
    assert found.stderr.splitlines()[-1].startswith("wherrow (Wherrow W1)")


@pytest.mark.plugins
def test_a_generic_backend_writes_the_same_text_on_it(
    alone: Environment, driver: Path, model: Path, run_engine: RunEngine, cpu_text: str
) -> None:
    """A backend that knows nothing of the vendor serves its device, which declares what torch can there."""
    asked = ("--model", str(model), *ASKED, "--backend", "torch_sdpa")
    found = run_engine(*asked, path=str(alone.site), WHERROW_ROOT=str(driver))
    assert found.returncode == 0, found.stderr
    assert found.stdout == cpu_text
    assert "wherrow (Wherrow W1), float32, attention by torch_sdpa" in found.stderr


@pytest.mark.plugins
def test_with_a_broken_driver_the_engine_runs_on(
    alone: Environment, driver: Path, model: Path, run_engine: RunEngine, cpu_text: str, tmp_path: Path
) -> None:
    """A library that was cut off costs the device: one warning that names it, and the CPU's text."""
    for name in ("dev", "lib"):
        (tmp_path / name).mkdir()
    (tmp_path / "dev" / "wherrow0").write_bytes((driver / "dev" / "wherrow0").read_bytes())
    library = (driver / "lib" / "libwherrow.so.1").read_bytes()
    (tmp_path / "lib" / "libwherrow.so.1").write_bytes(library[: len(library) // 3])
    found = run_engine("--model", str(model), *ASKED, path=str(alone.site), WHERROW_ROOT=str(tmp_path))
    assert found.returncode == 0, found.stderr
    assert found.stdout == cpu_text
    (warning,) = [line for line in found.stderr.splitlines() if line.startswith("WARNING")]
    assert f"{tmp_path}/lib/libwherrow.so.1: file too short" in warning
    assert warning.endswith("[platform/wherrow (wherrow-hardpoint 1.4.0)]; using cpu instead")
    assert found.stderr.splitlines()[-1].startswith("cpu (")


def test_uninstalled_it_is_gone(tmp_path: Path, driver: Path) -> None:
    """After `pip uninstall` no file is left and no trace in what is decided."""
    environment = Environment(tmp_path)
    before = sorted(environment.site.rglob("*"))
    environment.install()
    look = (
        "import hardpoint\n"
        "try:\n    print(hardpoint.resolve().platform.name)\n"
        "except ValueError as error:\n    print(error)\n"
    )
    assert environment.run(["-c", look], WHERROW_ROOT=driver).stdout.strip() == "wherrow"
    environment.pip("uninstall", "-y", "wherrow-hardpoint")
    assert sorted(environment.site.rglob("*")) == before
    done = environment.run(["-c", look], WHERROW_ROOT=driver)
    assert (done.stderr, done.stdout.partition(":")[0]) == ("", "no platform plugin is installed")


@pytest.mark.checkout
def test_nobody_names_it() -> None:
    """The core, the plugins and the engine contain no word of the vendor."""
    sources = [*ROOT.glob("src/**/*.py"), *ROOT.glob("plugins/**/*.py"), *ROOT.glob("examples/tiny_engine/*")]
    named = [path for path in sources if path.is_file() and "wherrow" in path.read_text(encoding="utf-8").lower()]
    assert (named, len(sources) > 100) == ([], True)


@pytest.mark.plugins
def test_a_real_model_writes_the_same_text(
    alone: Environment, driver: Path, run_engine: RunEngine, tmp_path: Path
) -> None:
    """SmolLM2 on the vendor's device, with more memory, says what it says on the CPU."""
    for name in ("dev", "lib"):
        (tmp_path / name).mkdir()
    node = (driver / "dev" / "wherrow0").read_text().replace("67108864", str(2 << 30))
    (tmp_path / "dev" / "wherrow0").write_text(node)
    (tmp_path / "lib" / "libwherrow.so.1").symlink_to(driver / "lib" / "libwherrow.so.1")
    asked = ("--prompt", "Why is the sky blue?", "--max-tokens", "12", "--dtype", "float32", "--num-blocks", "32")
    expected = run_engine(*asked, "--platform", "cpu")
    found = alone.run([str(ROOT / "examples" / "tiny_engine"), *asked], WHERROW_ROOT=tmp_path)
    assert (expected.returncode, found.returncode) == (0, 0), found.stderr
    assert found.stdout == expected.stdout
    assert len(found.stdout.split()) > 5
