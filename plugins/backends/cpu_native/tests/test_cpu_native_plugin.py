"""What the plugin declares is what is there, and the platform chooses it first."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hardpoint.attention import AttentionConfig
from hardpoint.hookspecs import API_VERSION
from hardpoint_cpu_native.plugin import LATENT_SUPPORT, SUPPORT, latent, plugin


def test_both_backends_are_declared() -> None:
    """One per kind, each with the group of modules that it needs."""
    dense, mla = plugin.hardpoint_backend(), latent.hardpoint_backend()
    assert (dense.kind, mla.kind) == ("attention", "mla_attention")
    assert dense.api == mla.api == API_VERSION
    assert dense.kernel_modules == mla.kernel_modules == ("cpu_native",)
    assert (dense.support, mla.support) == (SUPPORT, LATENT_SUPPORT)


def test_the_light_module_imports_neither_torch_nor_kernels() -> None:
    """Nothing is loaded to be listed."""
    code = """
import sys, hardpoint_cpu_native.plugin
loaded = {name for name in sys.modules if name.partition('.')[0] in ('torch', 'numpy') or '_native._' in name}
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"head_size": 24}, "head_size"),
        ({"head_size": 272}, "head_size"),
        ({"dtype": "float64"}, "dtype"),
        ({"kv_cache_dtype": "fp8_e5m2"}, "kv_cache_dtype"),
        ({"num_heads": 514, "num_kv_heads": 2}, "num_kv_heads"),
    ],
)
def test_what_the_kernels_cannot_do_is_refused_without_importing_them(options: dict[str, object], field: str) -> None:
    """The reason names the field."""
    asked = {"head_size": 64, "num_heads": 4, "num_kv_heads": 2, "dtype": "float32", "block_size": 16} | options
    reasons = SUPPORT.reasons(None, AttentionConfig(**asked))  # type: ignore[arg-type]  # by name
    # A value head is as large as the key's where nothing else is said.
    assert {str(reason.code) for reason in reasons} - {"v_head_size"} == {field}


@pytest.mark.torch
@pytest.mark.parametrize(
    "config",
    [
        AttentionConfig(head_size=64, num_heads=4, dtype="bfloat16", block_size=16),
        AttentionConfig(head_size=64, num_heads=4, dtype="float32", block_size=16, kv_cache_dtype="int8"),
        AttentionConfig(head_size=64, num_heads=4, dtype="float32", attention_type="encoder_only"),
        AttentionConfig(
            head_size=576, num_heads=16, dtype="bfloat16", block_size=16,
            kind="mla_attention", kv_lora_rank=512, qk_rope_head_dim=64,
        ),
    ],
    ids=["decoder", "int8 cache", "encoder", "latent"],
)  # fmt: skip
def test_the_platform_takes_it_first(config: AttentionConfig) -> None:
    """Where one of the modules can be imported, at depth ready."""
    import hardpoint

    platform = hardpoint.platform("cpu")
    if not any(record.outcome == "imported" for record in platform.import_kernels().modules):
        pytest.skip("none of the modules can be imported here")
    selection = platform.select_backend(config, depth="ready")
    assert selection.backend == ("cpu_native_mla" if config.kind == "mla_attention" else "cpu_native")


# What the compiler may use once it is given the flag, as /proc/cpuinfo spells it.
FLAGS = {
    "-mamx-tile": {"amx_tile"},
    "-mamx-bf16": {"amx_bf16"},
    "-mamx-int8": {"amx_int8"},
    "-mavx512bf16": {"avx512_bf16"},
    "-march=armv8.2-a+bf16+fp16": {"asimd", "atomics", "asimdrdm", "fphp", "asimdhp", "bf16"},
}


@pytest.mark.checkout
def test_each_module_is_built_for_what_the_platform_asks_of_a_cpu() -> None:
    """No flag of the build is missing in what the platform checks before it loads the module, nor the other way."""
    from hardpoint_cpu._kernel_modules import BUILDS

    text = (Path(__file__).parent.parent / "CMakeLists.txt").read_text(encoding="utf-8")
    sets: dict[str, str] = {}
    for name, flags in re.findall(r"set\((\w+) ([^)]*-m[^)]*)\)", text):
        sets[name] = re.sub(r"\$\{(\w+)\}", lambda found: sets[found[1]], flags)
    built: dict[str, set[str]] = {}
    for name, flags in re.findall(r"^  kernels\((\w+) ([^)]*)\)", text, re.MULTILINE):
        chosen = re.sub(r"\$\{(\w+)\}", lambda found: sets[found[1]], flags).split()
        asked = [flag for flag in chosen if not flag.startswith("-mprefer-")]
        built[f"hardpoint_cpu_native._{name}"] = set().union(*(FLAGS.get(flag, {flag[2:]}) for flag in asked))
    assert built == {build.name: set(build.features) for build in BUILDS}
