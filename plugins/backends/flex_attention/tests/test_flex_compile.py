"""Compiled once per family, at depth ``ready``; where nothing can be compiled, that is a reason."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch

import hardpoint
from hardpoint.attention import AttentionConfig
from hardpoint.errors import EnvironmentFailure
from hardpoint_flex_attention import _compiled
from hardpoint_flex_attention._family import Family
from hardpoint_flex_attention.backend import FlexAttentionBackend
from tests.attention.conformance import CROSS, MIXED, Step

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.torch, pytest.mark.compiler]

CPU_HAS_NO_VECTORS = True
STEPS: tuple[dict[str, Any], ...] = (
    MIXED,
    {"query_lens": [1], "seq_lens": [1]},
    {"query_lens": [1], "seq_lens": [300]},
    {"query_lens": [2], "seq_lens": [2]},
    {"query_lens": [130, 1], "seq_lens": [200, 33], "poison": 0.0},
    {"query_lens": [1] * 40, "seq_lens": list(range(1, 41)), "poison": 0.0},
)


@pytest.mark.parametrize("inference_mode", [False, True])
def test_no_step_after_prepare_compiles(base: dict[str, Any], inference_mode: bool) -> None:
    """One sequence or forty, one block or many, windows, no causality, inference mode: all are data."""
    FlexAttentionBackend.prepare(AttentionConfig(**base), "cpu")
    known = len(_compiled._known)
    with torch.compiler.set_stance("fail_on_recompile"), torch.inference_mode(inference_mode):
        for options in ({}, {"sliding_window": 7}, {"causal": False}, {"sinks": True}):
            for step in STEPS:
                Step.random(FlexAttentionBackend, AttentionConfig(**base, **options), **step).check()
        cross = AttentionConfig(**base, attention_type="encoder_decoder")
        Step.random(FlexAttentionBackend, cross, **CROSS).check()
    assert len(_compiled._known) == known


def test_preparing_again_compiles_nothing(base: dict[str, Any]) -> None:
    """Also for another layer's window, scale or number of blocks."""
    FlexAttentionBackend.prepare(AttentionConfig(**base), "cpu")
    with torch.compiler.set_stance("fail_on_recompile"):
        FlexAttentionBackend.prepare(AttentionConfig(**base, sliding_window=100), "cpu")


def test_modes_of_the_process_compile_from_the_family_too(base: dict[str, Any]) -> None:
    """Under deterministic algorithms torch compiles anew, and would do so from whatever step comes first."""
    config = AttentionConfig(**base)
    FlexAttentionBackend.prepare(config, "cpu")
    with torch.autocast("cpu", torch.bfloat16), torch.compiler.set_stance("fail_on_recompile"):
        Step.random(FlexAttentionBackend, config, [1], [1]).check()
    torch.use_deterministic_algorithms(True)
    try:
        Step.random(FlexAttentionBackend, config, [1], [1]).check()
        with torch.compiler.set_stance("fail_on_recompile"):
            Step.random(FlexAttentionBackend, config, [1, 1], [30, 100]).check()
    finally:
        torch.use_deterministic_algorithms(False)


def test_what_torch_forgot_is_compiled_again_from_the_family(base: dict[str, Any]) -> None:
    """After ``torch._dynamo.reset()`` the next step compiles for every step after it."""
    config = AttentionConfig(**base)
    FlexAttentionBackend.prepare(config, "cpu")
    torch._dynamo.reset()
    Step.random(FlexAttentionBackend, config, [1], [1]).check()
    with torch.compiler.set_stance("fail_on_recompile"):
        Step.random(FlexAttentionBackend, config, [1, 1], [30, 100]).check()


def test_a_decode_reads_the_cache_where_it_lies(base: dict[str, Any]) -> None:
    """Its keys are not gathered, unless unused slots of their blocks hold what zero times does not make zero."""
    for poison, in_place in ((0.0, True), (torch.nan, False), (torch.inf, False)):
        step = Step.random(FlexAttentionBackend, AttentionConfig(**base), [1, 1], [40, 30], poison=poison)
        plan: Any = step.plan()
        step.layer().forward(step.query, step.key, step.value, step.cache, plan)
        (group,) = plan.groups(16)
        assert (bool(group._paged), group._dense is None) == (in_place, in_place)
        step.check()


@pytest.mark.parametrize("way", ["stance", "disabled"])
def test_where_torch_compile_is_switched_off_nothing_runs_eagerly(base: dict[str, Any], way: str) -> None:
    """Neither the preparation nor a forward of a layer that was not prepared."""
    config = AttentionConfig(**{**base, "head_size": 24})
    switched_off: Any
    if way == "stance":
        # Takes effect when it is made.
        switched_off = torch.compiler.set_stance("force_eager")
    else:
        switched_off = torch._dynamo.config.patch(disable=True)
    with switched_off:
        with pytest.raises(EnvironmentFailure, match=r"torch\.compile is disabled in this process") as caught:
            FlexAttentionBackend.prepare(config, "cpu")
        assert caught.value.code == "compiler"
        with pytest.raises(EnvironmentFailure, match="would run eagerly"):
            Step.random(FlexAttentionBackend, config, **MIXED).forward()


def test_without_a_compiler_that_is_the_reason(base: dict[str, Any], tmp_path: Path) -> None:
    """Code ``compiler``, with what torch said and what to do; the next try finds out anew."""
    config = AttentionConfig(**{**base, "head_size": 40})
    missing = str(tmp_path / "no-such-compiler")
    with torch._inductor.config.patch({"cpp.cxx": (missing,)}):
        for _ in range(2):
            with pytest.raises(EnvironmentFailure, match="flex_attention cannot be compiled here") as caught:
                FlexAttentionBackend.prepare(config, "cpu")
            assert caught.value.code == "compiler"
            assert "install a C++ compiler" in str(caught.value.remedy)


def test_a_cache_directory_that_cannot_be_made_is_the_reason(
    base: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its path stands in the message."""
    config = AttentionConfig(**{**base, "head_size": 48})
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(
        EnvironmentFailure, match=r"cannot be compiled here: NotADirectoryError: .*file/cache"
    ) as caught:
        FlexAttentionBackend.prepare(config, "cpu")
    assert caught.value.code == "permission"


def test_a_new_process_may_not_even_import_the_compiler(tmp_path: Path) -> None:
    """Its import opens the cache: the reason is that of a process which has imported it."""
    (tmp_path / "file").write_text("")
    program = """
from hardpoint.attention import AttentionConfig
from hardpoint.errors import EnvironmentFailure
from hardpoint_flex_attention.backend import FlexAttentionBackend
try:
    FlexAttentionBackend.prepare(AttentionConfig(head_size=16, num_heads=2, dtype="float32"), "cpu")
except EnvironmentFailure as error:
    print(error.code, error, error.remedy)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        encoding="utf-8",
        check=True,
        env=os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "file" / "cache")},
    )
    assert re.match("permission flex_attention cannot be compiled here: NotADirectoryError: .*file/cache", done.stdout)
    assert "install a C++ compiler" in done.stdout


def test_an_assertion_without_words_says_where_it_stands() -> None:
    """What torch asserts of a compiler that makes nothing of its vector instructions has no text."""

    class LoweringError(Exception):
        """As torch words what failed below it."""

    try:
        assert not CPU_HAS_NO_VECTORS
    except AssertionError as error:
        lowering = LoweringError("AssertionError: \n  target: flex_attention\n  args[0]: TensorBox(…)")
        lowering.__cause__ = error
    text = str(_compiled._failure(lowering))
    assert re.search(r"AssertionError: raised in .*test_flex_compile.py, line \d+: assert not CPU_HAS_NO_VECT", text)
    assert "TensorBox" not in text


@pytest.mark.plugins
def test_a_selection_goes_on_to_the_next(
    base: dict[str, Any], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """At depth ``ready`` a missing compiler loses the backend, loudly; asked for alone, it is the error."""
    config = AttentionConfig(**{**base, "head_size": 56})
    platform = hardpoint.platform("cpu")
    with torch._inductor.config.patch({"cpp.cxx": (str(tmp_path / "none"),)}):
        selection = platform.select_backend(config, requested=["flex_attention", "torch_sdpa"], depth="ready")
        assert selection.backend == "torch_sdpa"
        (lost,) = [candidate for candidate in selection.candidates if candidate.name == "flex_attention"]
        assert (lost.outcome, lost.phase, lost.reasons[0].code) == ("failed", "prepare", "compiler")
        assert "flex_attention cannot be compiled here" in caplog.text
        with pytest.raises(ValueError, match="flex_attention cannot be compiled here"):
            platform.select_backend(config, requested="flex_attention", depth="ready")


def test_a_device_that_torch_lacks_is_an_environment_failure(base: dict[str, Any]) -> None:
    """Whatever torch raises."""
    if torch.xpu.is_available():
        pytest.skip("there is such a device")
    with pytest.raises(EnvironmentFailure, match="has no float32 on xpu") as caught:
        FlexAttentionBackend.prepare(AttentionConfig(**base), "xpu")
    assert caught.value.code == "no_device"


def test_an_error_that_is_not_the_machines_passes(base: dict[str, Any]) -> None:
    """A bug of ours is not taken for a missing compiler."""
    assert _compiled._as_failure(TypeError("wrong")) is None
    assert _compiled._as_failure(RuntimeError("something else")) is None
    unknown = RuntimeError("torch.compile is not supported on Python 3.99+")
    found = _compiled._as_failure(unknown)
    assert found is not None
    assert found.code == "compiler"


def test_a_long_complaint_is_cut(base: dict[str, Any]) -> None:
    """A C++ compiler may say thousands of lines; the first tell."""
    found = _compiled._as_failure(OSError("\n".join(map(str, range(1000)))))
    assert found is not None
    assert str(found).endswith("988 more lines")


def test_under_torch_compile_the_forward_is_one_operator(base: dict[str, Any]) -> None:
    """The engine's compiled code neither inlines nor breaks at it, and serves the next step."""
    graphs: list[list[str]] = []

    def keep(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    config = AttentionConfig(**base)
    steps = [Step.random(FlexAttentionBackend, config, [1, 4, 2], [9, 4, 5 + number]) for number in range(2)]
    layer = steps[0].layer()

    def model(step: Any, plan: Any) -> Any:
        return layer.forward(step.query * 1.0, step.key, step.value, step.cache, plan)

    compiled = torch.compile(model, backend=keep, fullgraph=True)
    for step in steps:
        wanted, _ = step.reference()
        torch.testing.assert_close(compiled(step, step.plan()).double(), wanted, atol=2e-5, rtol=2e-5)
    assert len(graphs) == 1
    assert [name for name in graphs[0] if "hardpoint" in name] == ["hardpoint.attention.default"]


def test_layers_and_plans_are_not_kept(base: dict[str, Any]) -> None:
    """The compiled functions outlive them and hold nothing of theirs."""
    step = Step.random(FlexAttentionBackend, AttentionConfig(**base), [1, 4], [40, 30])
    layer, plan = step.layer(), step.plan()
    layer.forward(step.query, step.key, step.value, step.cache, plan)
    dead = weakref.ref(layer), weakref.ref(plan)
    del layer, plan
    gc.collect()
    assert (dead[0](), dead[1]()) == (None, None)


def test_more_blocks_than_compiled_for_are_an_error() -> None:
    """The limit stands in the message."""
    from hardpoint_flex_attention._family import MAX_BLOCKS, roomy_base

    with pytest.raises(hardpoint.errors.ConfigError, match=f"{MAX_BLOCKS} at most"):
        roomy_base(MAX_BLOCKS + 1, torch.device("cpu"))


def test_a_gpus_tiles_are_those_of_its_matrix_units() -> None:
    """Rows are filled up to sixteen, and the kernel returns its denominators."""
    config = AttentionConfig(head_size=64, num_heads=6, num_kv_heads=2, dtype="bfloat16", block_size=16)
    decode = Family.decode(config, torch.device("cuda"), 16)
    assert (decode.rows, decode.block, decode.with_lse) == (16, 16, True)
    assert Family.decode(config, torch.device("cpu"), 16).rows == 3
