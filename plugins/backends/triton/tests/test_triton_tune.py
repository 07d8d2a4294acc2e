"""The script that measures tiles and writes their table, run in the interpreter, where its times mean nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import torch

import hardpoint_triton._tiles as tiles

pytestmark = [pytest.mark.torch, pytest.mark.checkout]

SCRIPT = Path(__file__).parents[4] / "benchmarks" / "triton_tune.py"
MANUAL = {"architectures": ["*"], "phase": "decode", "dtype_bytes": [2], "max_width": 640, "reason": "by hand"}


@pytest.fixture
def tune(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module, with a grid of one tile for each phase."""
    spec = spec_from_file_location("triton_tune", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "triton_tune", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "GRID", dict.fromkeys((tiles.DECODE, tiles.PREFILL), ((16,), (16,), (1,), (1,))))
    monkeypatch.setattr(module, "WARM_UP", 1)
    return module


@pytest.mark.usefixtures("interpreter")
def test_what_was_measured_stands_first_and_replaces_what_was_measured_before(tune: Any, tmp_path: Path) -> None:
    """Rows by hand stay, rows of other widths too; the result is a table that the backends can read."""
    table = tmp_path / "tiles.json"
    wider = {**MANUAL, "architectures": ["interpreter"], "max_width": 256, "reason": "measured on something: 1 ms"}
    table.write_text(json.dumps({"rows": [wider, MANUAL]}))
    arguments = ["--write", "--sizes", "16", "--rounds", "1", "--tokens", "20", "--sequences", "1"]
    for _ in range(2):
        assert tune.main([*arguments, "--table", str(table)]) == 0
        rows = json.loads(table.read_text())["rows"]
        assert rows[-2:] == [wider, MANUAL]
        cases = [(row["phase"], row["dtype_bytes"], row["max_width"]) for row in rows[:-2]]
        assert cases == [("decode", [2], 16), ("prefill", [2], 16), ("decode", [4], 16), ("prefill", [4], 16)]
    assert set(rows[0]) == {*tiles.rows()[0], "min_width"}
    assert rows[0]["reason"].startswith("measured on the interpreter: ")


def test_a_measured_row_for_wide_heads_is_not_taken_for_narrow_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands before the narrower ones, which it has not been compared with."""
    wide = {"architectures": ["sm_90"], "phase": "decode", "dtype_bytes": [2], "min_width": 129, "max_width": 256}
    wide |= {"block_m": 16, "block_n": 16, "num_warps": 1, "num_stages": 7}
    table = (wide, *tiles.rows())
    monkeypatch.setattr(tiles, "rows", lambda: table)
    stages = [tiles.choose.__wrapped__("sm_90", "decode", 2, width).num_stages for width in (64, 128, 192, 256)]
    assert stages == [3, 3, 7, 7]


@pytest.mark.usefixtures("interpreter")
def test_without_write_nothing_is_written(tune: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The winners are printed."""
    table = tmp_path / "tiles.json"
    arguments = ["--sizes", "16", "--rounds", "1", "--tokens", "17", "--sequences", "1", "--table", str(table)]
    assert tune.main(arguments) == 0
    assert capsys.readouterr().out.startswith("decode float16 16: Tile(block_m=16, block_n=16")
    assert not table.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sizes", "64,300"], "--sizes 300: a head has 1 to 256 elements; or say latent"),
        (["--sizes", ""], "a head has 1 to 256 elements"),
        (["--rounds", "0"], "are at least 1"),
    ],
)
def test_arguments_that_mean_nothing_are_errors(
    tune: Any, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is measured."""
    with pytest.raises(SystemExit):
        tune.main(arguments)
    assert message in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("script", ["triton_tune", "gpu_attention"])
def test_without_a_gpu_there_is_a_sentence_and_a_status(script: str) -> None:
    """Nothing is measured, nothing is written."""
    path = SCRIPT.with_name(f"{script}.py")
    done = subprocess.run([sys.executable, str(path)], capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 2, done.stderr
    assert done.stdout.startswith("there is no GPU here that torch can use: nothing is measured")
