"""The attention backend, and the generic one on the same device."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

import hardpoint
from examples.vendor_plugin.tests.conftest import HERE, run
from examples.vendor_plugin.tests.test_wherrow_detect import remembered

if TYPE_CHECKING:
    from pathlib import Path

    from examples.vendor_plugin.tests.conftest import MakeRoot

TOLERANCES = {"float32": 1e-5, "bfloat16": 3e-2}


@pytest.mark.torch
@pytest.mark.compiler
@pytest.mark.parametrize(
    "name",
    [
        "wherrow_attention",
        pytest.param(
            "torch_sdpa",
            marks=pytest.mark.skipif(
                find_spec("hardpoint_torch_sdpa") is None, reason="needs hardpoint-torch-sdpa, which serves any device"
            ),
        ),
    ],
)
def test_a_backend_agrees_with_the_reference(name: str, make_root: MakeRoot, installed: Path) -> None:
    """The vendor's kernel and the generic backend give the right results, lse and cache on every device."""
    done = run(installed, [str(HERE / "tests" / "attention_on_device.py"), name], WHERROW_ROOT=make_root(2))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == 20
    assert {label: gap for label, gap in found.items() if not gap < TOLERANCES[label.partition(" ")[0]]} == {}


def refusal(name: str, **changes: object) -> list[str]:
    """Why a backend refuses a config on a remembered machine."""
    from wherrow.platform import WherrowPlatform
    from wherrow.plugin import backend_plugin, platform_plugin

    hardpoint.reset()
    hardpoint.register("platform", "wherrow", platform_plugin)
    hardpoint.register("backend", "wherrow_attention", backend_plugin)
    machine = remembered(1)
    platform = WherrowPlatform(machine, platform_plugin.hardpoint_detect(machine).devices)
    fields: dict[str, object] = {"head_size": 64, "num_heads": 4, "dtype": "float32", "block_size": 16, **changes}
    valid, rejected = platform.get_valid_backends(
        platform.get_device_capability(0),
        hardpoint.AttentionConfig(**fields),  # type: ignore[arg-type]  # by name
        depth="static",
    )
    return [] if name in [item.name for item in valid] else [reason.message for reason in rejected[name].reasons]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, []),
        ({"head_size": 20}, ["head_size=20; accepts a multiple of 8"]),
        ({"block_size": None}, ["block_size=None; accepts a multiple of 8"]),
        ({"sliding_window": 64}, ["sliding_window=64; accepts none"]),
        ({"dtype": "float16"}, ["dtype=float16; accepts float32 or bfloat16"]),
        ({"attention_type": "encoder_only"}, ["attention_type=encoder_only; accepts decoder"]),
    ],
)
def test_what_the_kernel_cannot_do_is_declared(
    changes: dict[str, object], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The declared support is data: a request that it does not cover is refused before anything is imported."""
    monkeypatch.setenv("HARDPOINT_PLUGINS", "platform/wherrow,backend/wherrow_attention")
    found = refusal("wherrow_attention", **changes)
    assert all(any(sentence in text for text in found) for sentence in said)
    assert bool(found) == bool(said)


@pytest.mark.skipif(find_spec("hardpoint_torch_sdpa") is None, reason="needs hardpoint-torch-sdpa")
@pytest.mark.torch
def test_a_generic_backend_serves_the_device_or_says_why_not() -> None:
    """What a platform declares of its torch device decides, before anything is imported."""
    assert refusal("torch_sdpa", sliding_window=64) == []
    assert refusal("torch_sdpa", soft_cap=30.0) == ["soft_cap=30.0; accepts none"]
    from wherrow.platform import WherrowPlatform

    features = WherrowPlatform.torch_features
    try:
        WherrowPlatform.torch_features = frozenset({"aten"})
        assert refusal("torch_sdpa") == ["platform wherrow does not declare sdpa"]
    finally:
        WherrowPlatform.torch_features = features
