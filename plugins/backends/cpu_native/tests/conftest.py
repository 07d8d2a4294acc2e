"""The kernel modules that this machine can run, and backends that are bound to one of them."""

from __future__ import annotations

import importlib
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from hardpoint_cpu._kernel_modules import BUILDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from hardpoint_cpu_native._kernels import Kernels
    from hardpoint_cpu_native.backend import CpuNativeBackend
    from tests.attention.conformance import Step

# Where there is no C++ compiler the distribution is not installed.
if find_spec("hardpoint_cpu_native") is None:
    collect_ignore_glob = ["test_cpu_native_*.py"]

# Narrowest first, with what the build of each needs, as /proc/cpuinfo spells it. A test holds the build to it.
NEEDED = {build.name.rpartition(".")[2]: set(build.features) for build in reversed(BUILDS)}


def features() -> set[str]:
    """The flags of this machine's first CPU."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith(("flags", "Features")):
            return set(line.partition(":")[2].split())
    return set()


def bound(base: type[CpuNativeBackend], kernels: Kernels) -> type[CpuNativeBackend]:
    """The backend on that module, whichever the platform would choose."""
    return type(f"{base.__name__}On{kernels.instruction_set}", (base,), {"kernels": classmethod(lambda _: kernels)})


RUNNABLE = [name for name, needed in NEEDED.items() if needed <= features()]


def load(name: str) -> Kernels:
    """One of the modules."""
    return cast("Kernels", importlib.import_module(f"hardpoint_cpu_native.{name}"))


# The narrowest and the widest differ in the most: in the vectors' length, and in tiles.
@pytest.fixture(scope="session", params=sorted({*RUNNABLE[:1], *RUNNABLE[-1:]}) or ["_none"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """The narrowest and the widest module that this machine can run."""
    if not RUNNABLE:
        pytest.skip("this machine can run none of the modules")
    return load(request.param)


@pytest.fixture(scope="session", params=NEEDED)
def each_kernels(request: pytest.FixtureRequest) -> Kernels:
    """Each module that this machine can run."""
    if missing := NEEDED[request.param] - features():
        pytest.skip(f"hardpoint_cpu_native.{request.param} needs {', '.join(sorted(missing))}")
    return load(request.param)


@pytest.fixture
def backend(kernels: Kernels) -> type[CpuNativeBackend]:
    """The backend on each module."""
    from hardpoint_cpu_native.backend import CpuNativeBackend

    return bound(CpuNativeBackend, kernels)


@pytest.fixture
def latent(kernels: Kernels) -> type[CpuNativeBackend]:
    """The backend of the latent form on each module."""
    from hardpoint_cpu_native.mla_backend import CpuNativeMlaBackend

    return bound(CpuNativeMlaBackend, kernels)


@pytest.fixture
def random_step(backend: type[CpuNativeBackend]) -> Callable[..., Step]:
    """Makes a `Step` of each module."""
    from tests.attention.conformance import Step

    return partial(Step.random, backend)
