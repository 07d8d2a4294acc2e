"""B46 and B48, from the machine's files through the CPU platform to the backend that is chosen."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import hardpoint
from hardpoint import InMemoryMachine
from hardpoint.errors import NoBackendError
from tests.plugins import Site, config, imported

pytestmark = pytest.mark.plugins

BASE = "fpu cx8 cmov fxsr sse sse2 sse4_2 ssse3 avx avx2 fma f16c bmi1 bmi2 movbe abm"
AVX512 = f"{BASE} avx512f avx512bw avx512cd avx512dq avx512vl"
AMX = f"{AVX512} avx512vbmi avx512_vnni avx512_bf16 amx_tile amx_bf16 amx_int8"


def cpuinfo(*flags: str, key: str = "flags") -> str:
    """A record per CPU, all of them of a model that is known for AVX-512 and AMX."""
    return "\n\n".join(
        f"processor\t: {number}\nvendor_id\t: GenuineIntel\nmodel name\t: Xeon Platinum 8480+\n{key}\t\t: {text}"
        for number, text in enumerate(flags)
    ) + "\n\n"  # fmt: skip


def on(site: Site, architecture: str = "x86_64", **facts: Any) -> hardpoint.Platform:
    """The CPU platform of such a machine."""
    site.allow("hardpoint-cpu")
    facts.setdefault("system", "Linux")
    machine = InMemoryMachine(architecture=architecture, **facts)
    return hardpoint.resolve("cpu", machine=machine).platform


def native(site: Site) -> dict[str, str]:
    """Backends as a kernel library brings them, each with the features that its binary needs."""
    needs = {
        "amx": "'amx_tile', 'amx_bf16'",
        "bf16": "'avx512_bf16'",
        "wide": "'avx512f'",
        "narrow": "'avx2'",
        "any": "",
    }
    places = list(needs)
    return {
        name: site.backend(
            name,
            platforms="('cpu',)",
            more=f"features=({feature},)" if feature else "",
            spec=f"order=Order(before={tuple(places[position + 1 :])!r})",
        )
        for position, (name, feature) in enumerate(needs.items())
    }


def chosen(platform: hardpoint.Platform) -> str | None:
    """The backend of a plain layer."""
    return platform.select_backend(config()).backend


def reason(platform: hardpoint.Platform, name: str) -> str:
    """Why one of them was not taken."""
    (found,) = [item for item in platform.select_backend(config()).candidates if item.name == name]
    return "; ".join(item.message for item in found.reasons)


@pytest.mark.parametrize(
    ("flags", "amx", "expected"),
    [
        ((BASE,), True, "narrow"),
        ((AVX512,), True, "wide"),
        ((AMX,), True, "amx"),
        ((AMX,), False, "bf16"),
        ((AMX, AVX512), True, "wide"),
        ((AVX512, BASE), True, "narrow"),
        (("fpu sse sse2",), True, "any"),
        (("",), True, "any"),
    ],
)
def test_b48_what_the_system_shows_decides(site: Site, flags: tuple[str, ...], amx: bool, expected: str) -> None:
    """B48: flags, their intersection over CPUs and the kernel's permission, never the model's name."""
    packages = native(site)
    platform = on(
        site,
        files={"/proc/cpuinfo": cpuinfo(*flags)},
        cpu_count=len(flags),
        affinity=frozenset(range(len(flags))),
        probes={"cpu.amx": amx},
    )
    assert chosen(platform) == expected
    # Rejected from the declared features, before any import: an illegal instruction cannot be caught.
    assert not any(imported(package, "implementation") for package in packages.values())


def test_b48_the_reason_names_the_feature(site: Site) -> None:
    """B48: the model is one with AVX-512, and the reason is the flag that the system does not show."""
    native(site)
    platform = on(site, files={"/proc/cpuinfo": cpuinfo(BASE)}, affinity=frozenset({0}))
    assert "avx512f" in reason(platform, "wide")
    assert "avx512_bf16" in reason(platform, "bf16")


def test_b48_amx_that_is_not_permitted(site: Site) -> None:
    """B48: the candidate's own record says "AMX not permitted", and the next backend is used."""
    native(site)
    site.backend("tiles", platforms="('cpu',)", spec="kernel_modules=('hardpoint_cpu_native._amx',)")
    platform = on(
        site,
        files={"/proc/cpuinfo": cpuinfo(AMX)},
        affinity=frozenset({0}),
        probes={"cpu.amx": PermissionError(1, "Operation not permitted")},
    )
    assert chosen(platform) == "bf16"
    assert "amx_tile" in reason(platform, "amx")
    assert "AMX not permitted" in hardpoint.resolve("cpu", machine=platform.machine).chosen.reasons[0].message
    with pytest.raises(ValueError, match="AMX not permitted: PermissionError"):
        platform.select_backend(config(), "tiles")


@pytest.mark.parametrize("architecture", ["aarch64", "arm64"])
def test_b48_arm(site: Site, architecture: str) -> None:
    """B48: a Features line and no flags: no x86 backend, no KeyError."""
    native(site)
    text = cpuinfo("fp asimd evtstrm aes crc32 atomics bf16 i8mm", key="Features")
    platform = on(site, architecture, files={"/proc/cpuinfo": text}, affinity=frozenset({0}))
    assert chosen(platform) == "any"


def test_b48_no_proc(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """B48: macOS has none, and an unreadable one is the baseline with one WARNING; a backend for any CPU is chosen."""
    native(site)
    assert chosen(on(site, "arm64", system="Darwin", affinity=None)) == "any"
    caplog.clear()
    with caplog.at_level(logging.WARNING, "hardpoint"):
        for _ in range(2):
            platform = on(site, files={"/proc/cpuinfo": PermissionError(13, "Permission denied", "/proc/cpuinfo")})
            assert chosen(platform) == "any"
    assert sum("cpuinfo" in record.getMessage() for record in caplog.records) == 1


def test_b48_nothing_fits(site: Site) -> None:
    """Where every backend needs more than there is, the error names each one's feature."""
    site.backend("wide", platforms="('cpu',)", more="features=('avx512f',)")
    platform = on(site, files={"/proc/cpuinfo": cpuinfo(BASE)}, affinity=frozenset({0}))
    with pytest.raises(NoBackendError, match="avx512f"):
        platform.select_backend(config())


@pytest.mark.parametrize(
    ("quota", "affinity", "expected"),
    [
        ("400000 100000", range(64), 4),
        ("765000 100000", range(64), 7),
        ("50000 100000", range(64), 1),
        ("max 100000", (8, 9, 10, 11), 4),
        ("max", (8, 9, 10, 11), 4),
        ("400000 100000", (1, 2), 2),
        ("99999 100000", range(8), 1),
        ("nonsense", (1, 2, 3), 3),
        ("", (1, 2, 3), 3),
        ("0 0", (1, 2, 3), 3),
    ],
)
def test_b46_the_smallest_of_quota_and_affinity(site: Site, quota: str, affinity: Any, expected: int) -> None:
    """B46: rounded down, at least one; what cannot be read is no limit."""
    platform: Any = on(
        site,
        files={"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/cpu.max": f"{quota}\n",
               "/sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
               "/proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n"},
        affinity=frozenset(affinity),
        cpu_count=64,
    )  # fmt: skip
    assert platform.usable_cpus == expected
    shares = platform.partition_cores(1)
    assert set().union(*(share.cpus for share in shares)) <= set(affinity)


@pytest.mark.parametrize(("count", "expected"), [(10, 10), (None, 1)])
def test_b46_no_affinity(site: Site, count: int | None, expected: int) -> None:
    """B46: `os.cpu_count()` where there is no mask, 1 where that is unknown."""
    platform: Any = on(site, "arm64", system="Darwin", affinity=None, cpu_count=count)
    assert platform.usable_cpus == expected
