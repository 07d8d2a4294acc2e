"""Resolution on a live machine whose device nodes and sysfs are plain folders, with a real torch_neuronx or none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CODE = """
import json, logging, sys
sys.path.insert(0, {tests!r})
from conftest import RootedMachine
from pathlib import Path
import hardpoint
import hardpoint.errors
from hardpoint.hookspecs import Detection, Device, PlatformSpec, Rank, hookimpl
from hardpoint.platforms import Platform

class Plain(Platform):
    name, vendor, device_type, dispatch_key, supported_dtypes = "plain", "nobody", "cpu", "CPU", ("float32",)
    def backend_priorities(self, device_capability, config): return ()

class Plugin:
    @hookimpl
    def hardpoint_platform(self): return PlatformSpec(api=(1, 0), target="__main__:Plain", rank=Rank.CPU)
    @hookimpl
    def hardpoint_detect(self, machine): return Detection.usable([Device(index=0, name="plain")])

class Kept(logging.Handler):
    texts = []
    def emit(self, record):
        if record.levelno >= logging.WARNING: self.texts.append(record.getMessage())

logging.getLogger("hardpoint").addHandler(Kept())
hardpoint.register("platform", "plain", Plugin())
machine = RootedMachine(Path({root!r}))
"""

RESOLVE = """
resolution = hardpoint.resolve(machine=machine)
neuron = next(item for item in resolution.candidates if item.name == "neuron")
heavy = [name for name in ("torch", "torch_neuronx", "torch_xla", "numpy") if name in sys.modules]
print(json.dumps({"platform": resolution.platform.name, "fallback": resolution.is_fallback, "texts": Kept.texts,
                  "outcome": neuron.outcome, "phase": neuron.phase, "heavy": heavy,
                  "codes": [reason.code for reason in neuron.reasons],
                  "remedies": [reason.remedy for reason in neuron.reasons],
                  "messages": [reason.message for reason in neuron.reasons],
                  "cores": resolution.platform.device_count()}))
"""


@pytest.fixture
def run(host: Any, tmp_path: Path, entry: Callable[..., dict[str, Any]]) -> Callable[..., Any]:
    """Run code in a fresh process on a machine with one Trainium1; what it prints last, as JSON.

    `module`: the source of a torch_neuronx that is installed, metadata included.
    """

    def run(code: str = RESOLVE, *, module: str | None = None, version: str = "2.9.0", **variables: str) -> Any:
        host.plug("trn1")
        host.tool(f"cat <<'END'\n{json.dumps([entry(0, 'trn1')])}\nEND")
        site = tmp_path / "site"
        site.mkdir()
        if module is not None:
            (site / "torch_neuronx.py").write_text(textwrap.dedent(module))
            folder = site / f"torch_neuronx-{version}.dist-info"
            folder.mkdir()
            (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch-neuronx\nVersion: {version}\n")
        environment = {
            name: text for name, text in os.environ.items() if not name.startswith(("HARDPOINT_", "NEURON_"))
        }
        environment |= {
            "PYTHONPATH": os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")])),
            "HARDPOINT_PLUGINS": "platform/neuron,platform/plain",
            **variables,
        }
        prelude = CODE.format(tests=os.path.dirname(__file__), root=str(host.root))
        done = subprocess.run(
            [sys.executable, "-c", prelude + code], capture_output=True, text=True, check=False, timeout=120,
            env=environment,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def test_activation_imports_it(run: Callable[..., Any]) -> None:
    """The winner imports torch_neuronx, and nothing else of that weight."""
    found = run(module="")
    assert (found["platform"], found["outcome"], found["cores"]) == ("neuron", "chosen", 2)
    assert (found["fallback"], found["heavy"], found["texts"]) == (False, ["torch_neuronx"], [])


def test_detection_imports_nothing(run: Callable[..., Any]) -> None:
    """Detection alone does not import it, though it is installed."""
    code = """
from hardpoint_neuron.plugin import plugin
status = plugin.hardpoint_detect(machine).status
print(json.dumps([status, "torch_neuronx" in sys.modules, "torch" in sys.modules]))
"""
    assert run(code, module="raise AssertionError('imported')") == ["usable", False, False]


def test_absent(run: Callable[..., Any]) -> None:
    """Without torch-neuronx activation fails by environment, with the remedy, and the next platform is taken."""
    found = run()
    assert (found["platform"], found["fallback"]) == ("plain", True)
    assert (found["outcome"], found["phase"], found["codes"]) == ("failed", "activate", ["missing_dependency"])
    assert found["remedies"][0].startswith("install torch-neuronx from AWS's Neuron package index")
    (text,) = found["texts"]
    assert "torch-neuronx is not installed" in text
    assert "using plain instead" in text


@pytest.mark.parametrize(
    ("module", "code", "words"),
    [
        ("import a_module_that_is_not_there", "missing_dependency", "No module named 'a_module_that_is_not_there'"),
        ("raise ImportError('libnrt.so.1: undefined symbol: nrt_x')", "broken_import", "undefined symbol: nrt_x"),
        ("raise OSError('libnrt.so.1: cannot open shared object file')", "missing_library", "libnrt.so.1"),
        ("raise RuntimeError('the driver is too old')", "broken_import", "RuntimeError: the driver is too old"),
        ("import torch_neuronx; torch_neuronx.gone", "broken_import", "does not load: AttributeError: "),
        ("{}['NEURON_RT_ROOT']", "broken_import", "does not load: KeyError: 'NEURON_RT_ROOT'"),
        ("def cut_off(", "broken_import", "does not load: SyntaxError: "),
    ],
)
def test_broken(run: Callable[..., Any], module: str, code: str, words: str) -> None:
    """One that does not load is the environment's failure, in its own words, and the next platform is taken."""
    found = run(module=module)
    assert (found["platform"], found["fallback"], found["codes"]) == ("plain", True, [code])
    assert words in found["messages"][0]


def test_bug_in_it(run: Callable[..., Any]) -> None:
    """A recursion without end is a bug wherever it is, and passes as itself."""
    code = """
try:
    hardpoint.resolve(machine=machine)
except RecursionError as error:
    print(json.dumps([str(error), "platform/neuron" in error.__notes__[0]]))
"""
    assert run(code, module="raise RecursionError('a bug')") == ["a bug", True]


def test_strict(run: Callable[..., Any]) -> None:
    """In strict mode the loss is the error."""
    code = """
try:
    hardpoint.resolve(machine=machine)
except hardpoint.errors.PlatformUnavailableError as error:
    print(json.dumps(str(error)))
"""
    assert "strict mode does not fall back to plain" in run(code, HARDPOINT_STRICT="1")


def test_asked_for_by_name(run: Callable[..., Any]) -> None:
    """Asked for by name, its failure is the error, and no other platform is tried."""
    code = """
try:
    hardpoint.resolve("neuron", machine=machine)
except hardpoint.errors.PlatformUnavailableError as error:
    print(json.dumps(str(error)))
"""
    assert "torch-neuronx is not installed" in run(code)


RIVAL = """
class Rival(Plain):
    name = "rival"

class RivalPlugin:
    @hookimpl
    def hardpoint_platform(self): return PlatformSpec(api=(1, 0), target="__main__:Rival", rank=Rank.IN_TREE)
    @hookimpl
    def hardpoint_detect(self, machine): return Detection.usable([Device(index=0, name="rival")])

hardpoint.register("platform", "rival", RivalPlugin())
try:
    found = hardpoint.resolve(machine=machine).platform.name
except hardpoint.errors.AmbiguousPlatformError as error:
    found = str(error)
print(json.dumps(found))
"""


def test_two_accelerators(run: Callable[..., Any]) -> None:
    """B11: beside another accelerator's usable platform the error names both, and the variable that settles it."""
    plugins = {"HARDPOINT_PLUGINS": "platform/neuron,platform/plain,platform/rival"}
    text = run(RIVAL, module="", **plugins)
    assert "2 platforms are usable here" in text
    assert "platform/neuron (hardpoint-neuron" in text
    assert "platform/rival" in text
    assert "set HARDPOINT_PLATFORM=" in text


def test_two_accelerators_settled_by_the_build_of_torch(run: Callable[..., Any], tmp_path: Path) -> None:
    """B11: a torch that is built for another accelerator, and no torch-neuronx, leave the machine to that one."""
    code = (
        "from pathlib import Path\n"
        f"site = Path({str(tmp_path / 'site')!r})\n"
        "(site / 'torch-9.9.dist-info').mkdir()\n"
        "(site / 'torch-9.9.dist-info/METADATA').write_text('Metadata-Version: 2.1\\nName: torch\\nVersion: 9.9\\n')\n"
        "(site / 'torch').mkdir()\n"
        "(site / 'torch/version.py').write_text(\"cuda: Optional[str] = '12.8'\\n\")\n"
    )
    plugins = {"HARDPOINT_PLUGINS": "platform/neuron,platform/plain,platform/rival"}
    assert run(code + RIVAL, **plugins) == "rival"


def test_empty_mask(run: Callable[..., Any]) -> None:
    """A mask that hides every core is the user's word: the next platform is taken without a warning."""
    found = run(module="", NEURON_RT_VISIBLE_CORES="")
    assert (found["platform"], found["fallback"], found["texts"]) == ("plain", False, [])
    assert (found["outcome"], found["codes"]) == ("unusable", ["masked"])


def test_mask_that_is_a_mistake(run: Callable[..., Any]) -> None:
    """One that the runtime would not start with is a loss: one WARNING names it, and what is used instead."""
    found = run(module="", NEURON_RT_VISIBLE_CORES="99")
    assert (found["platform"], found["fallback"], found["codes"]) == ("plain", True, ["masked"])
    (text,) = found["texts"]
    assert "NEURON_RT_VISIBLE_CORES='99' leaves no core" in text
    assert "using plain instead" in text


def test_report(run: Callable[..., Any]) -> None:
    """The report shows that there is no backend to select, and why."""
    code = """
report = hardpoint.inspect([hardpoint.AttentionConfig(head_size=64, num_heads=8, num_kv_heads=8, dtype="bfloat16",
                                                      block_size=16)], machine=machine)
print(json.dumps(report.to_text()))
"""
    assert "no selectable backend: attention lives in the compiled graph" in run(code, module="")


def test_no_device_is_opened(run: Callable[..., Any], host: Any) -> None:
    """Resolution reads sysfs and opens no device node, and nothing of the runtime."""
    code = """
opened = []
sys.addaudithook(lambda event, arguments: opened.append(str(arguments[0])) if event == "open" else None)
hardpoint.resolve(machine=machine)
print(json.dumps(opened))
"""
    opened = run(code, module="")
    assert [name for name in opened if name.endswith("neuron0/info/architecture/device_name")]
    assert [name for name in opened if "/dev/neuron" in name or "libnrt" in name] == []
