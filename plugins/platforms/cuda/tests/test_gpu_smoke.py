"""``benchmarks/gpu_smoke.py`` counts contexts; what it says of a real machine is worth that much."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from plugins.platforms.cuda.tests.conftest import Drivers

SCRIPT = Path(__file__).parents[4] / "benchmarks" / "gpu_smoke.py"

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(not SCRIPT.exists(), reason="the repository's benchmarks are not here"),
]


def test_contexts_are_counted(drivers: Drivers) -> None:
    """None without the library, none before it is initialised, none after; then each device's own."""
    drivers.install("cuda")
    drivers.play("count=2")
    counted = drivers.run(f"""
        import ctypes, runpy
        count = runpy.run_path({str(SCRIPT)!r}, run_name="smoke")["active_contexts"]
        counted = [count()]
        library = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        counted.append(count())
        for step in (
            lambda: library.cuInit(0),
            lambda: library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 1),
            lambda: library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        ):
            assert step() == 0
            counted.append(count())
        print(json.dumps(counted))
    """)
    assert counted == [0, 0, 0, 1, 2]
