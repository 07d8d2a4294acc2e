"""Whether the distribution is there to be tested."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def test_it_is_installed_with_kernels_for_this_machine() -> None:
    """Where it was compiled, the modules of this machine's family lie beside its Python files."""
    if find_spec("hardpoint_cpu_native") is None:
        pytest.skip("hardpoint-cpu-native is not installed: no C++ compiler was found to build it with")
    names = [f"hardpoint_cpu_native.{name}" for name in ("_avx2", "_avx512", "_avx512_bf16", "_amx", "_neon")]
    assert any(find_spec(name) is not None for name in names)
