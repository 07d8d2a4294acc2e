from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardpoint import InMemoryMachine
from hardpoint_cpu._cgroup import Limits, Mount, parse_bytes, parse_cpu_max, parse_groups, parse_mounts, read_limits

GIB = 1 << 30
V2_MOUNT = "35 24 0:30 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNTS = (
    "31 24 0:28 / /sys/fs/cgroup ro,nosuid shared:9 - tmpfs tmpfs ro,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:10 - cgroup cgroup rw,cpu,cpuacct\n"
    "33 31 0:30 / /sys/fs/cgroup/memory rw,relatime shared:11 - cgroup cgroup rw,memory\n"
    "34 31 0:31 / /sys/fs/cgroup/systemd rw,relatime shared:12 - cgroup cgroup rw,name=systemd\n"
)


def limits_of(files: dict[str, str | bytes | OSError]) -> Limits:
    """The limits on a machine with these files."""
    return read_limits(InMemoryMachine(system="Linux", architecture="x86_64", files=files))


@pytest.mark.parametrize(
    ("text", "cpus", "whole"),
    [
        ("400000 100000\n", 4.0, 4),
        ("765000 100000\n", 7.65, 7),
        ("50000 100000\n", 0.5, 1),
        ("150000\n", 1.5, 1),
        ("max 100000\n", None, None),
        ("max\n", None, None),
        ("", None, None),
        ("400000 0\n", None, None),
        ("0 100000\n", None, None),
        ("banana 100000\n", None, None),
        ("400000 banana\n", None, None),
    ],
)
def test_quota_of_version_2(text: str, cpus: float | None, whole: int | None) -> None:
    """A quota over its period is rounded down to whole CPUs, at least one; max and damage limit nothing."""
    limits = limits_of({"/sys/fs/cgroup/cpu.max": text})
    assert (limits.cpus, limits.whole_cpus) == (cpus, whole)


@pytest.mark.parametrize(
    ("quota", "period", "whole"),
    [
        ("-1\n", "100000\n", None),
        ("400000\n", "100000\n", 4),
        ("50000\n", "100000\n", 1),
        ("400000", None, 4),
        ("", "", None),
    ],
)
def test_quota_of_version_1(quota: str, period: str | None, whole: int | None) -> None:
    """A quota of -1 is no limit; a period that cannot be read is the kernel's default."""
    files: dict[str, str | bytes | OSError] = {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": quota}
    if period is not None:
        files["/sys/fs/cgroup/cpu/cpu.cfs_period_us"] = period
    assert limits_of(files).whole_cpus == whole


def test_smallest_quota_along_the_path_wins() -> None:
    """A parent's quota limits its children, whatever they were given themselves."""
    files: dict[str, str | bytes | OSError] = {
        "/proc/self/cgroup": "0::/kubepods.slice/pod1.slice/container.scope\n",
        "/proc/self/mountinfo": V2_MOUNT,
        "/sys/fs/cgroup/kubepods.slice/cpu.max": "1600000 100000\n",
        "/sys/fs/cgroup/kubepods.slice/pod1.slice/cpu.max": "300000 100000\n",
        "/sys/fs/cgroup/kubepods.slice/pod1.slice/container.scope/cpu.max": "max 100000\n",
        "/sys/fs/cgroup/kubepods.slice/memory.max": f"{32 * GIB}\n",
        "/sys/fs/cgroup/kubepods.slice/pod1.slice/memory.max": "max\n",
        "/sys/fs/cgroup/kubepods.slice/pod1.slice/container.scope/memory.max": f"{8 * GIB}\n",
    }
    assert limits_of(files) == Limits(cpus=3.0, whole_cpus=3, memory_bytes=8 * GIB)


def test_sibling_does_not_count() -> None:
    """A group that this process is not in limits nothing, though its name begins alike."""
    files: dict[str, str | bytes | OSError] = {
        "/proc/self/cgroup": "0::/pod1\n",
        "/proc/self/mountinfo": V2_MOUNT,
        "/sys/fs/cgroup/pod/cpu.max": "100000 100000\n",
        "/sys/fs/cgroup/pod11/cpu.max": "100000 100000\n",
        "/sys/fs/cgroup/pod1/cpu.max": "200000 100000\n",
    }
    assert limits_of(files).whole_cpus == 2


def test_mount_of_another_group_with_the_same_beginning() -> None:
    """A mount whose root is /box is not that of the group /box2/inner: only what it shows at its top counts."""
    files: dict[str, str | bytes | OSError] = {
        "/proc/self/cgroup": "0::/box2/inner\n",
        "/proc/self/mountinfo": V2_MOUNT.replace(" / /sys", " /box /sys"),
        "/sys/fs/cgroup/cpu.max": "300000 100000\n",
        "/sys/fs/cgroup/2/inner/cpu.max": "100000 100000\n",
    }
    assert limits_of(files).whole_cpus == 3


def test_versions_of_one_system_are_both_read() -> None:
    """On a hybrid system the controllers are version 1, and the unified hierarchy stands beside them without any."""
    files: dict[str, str | bytes | OSError] = {
        "/proc/self/cgroup": "4:memory:/box\n3:cpu,cpuacct:/box\n1:name=systemd:/init.scope\n0::/init.scope\n",
        "/proc/self/mountinfo": V1_MOUNTS + V2_MOUNT.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified"),
        "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
        "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        "/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "250000\n",
        "/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "/sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{4 * GIB}\n",
        "/sys/fs/cgroup/unified/cgroup.procs": "1\n",
    }
    assert limits_of(files) == Limits(cpus=2.5, whole_cpus=2, memory_bytes=4 * GIB)


def test_container_that_sees_its_group_as_root() -> None:
    """Without a cgroup namespace the path is the host's, and the mount shows only the part from its own root on."""
    files: dict[str, str | bytes | OSError] = {
        "/proc/self/cgroup": "3:cpu,cpuacct:/docker/abc/inner\n0::/docker/abc\n",
        "/proc/self/mountinfo": (
            "32 31 0:29 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro master:10 - cgroup cgroup rw,cpu,cpuacct\n"
        ),
        "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "600000\n",
        "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        "/sys/fs/cgroup/cpu,cpuacct/inner/cpu.cfs_quota_us": "200000\n",
        "/sys/fs/cgroup/cpu,cpuacct/inner/cpu.cfs_period_us": "100000\n",
        # What the host's path would name is another folder.
        "/sys/fs/cgroup/cpu,cpuacct/docker/abc/inner/cpu.cfs_quota_us": "100000\n",
    }
    assert limits_of(files).whole_cpus == 2


@pytest.mark.parametrize("path", ["/../../other", "/a/../b"])
def test_group_outside_the_namespace_falls_back_to_the_mount(path: str) -> None:
    """A path that leaves the namespace's root is not followed."""
    files: dict[str, str | bytes | OSError] = {
        "/proc/self/cgroup": f"0::{path}\n",
        "/proc/self/mountinfo": V2_MOUNT,
        "/sys/fs/cgroup/cpu.max": "200000 100000\n",
        "/sys/fs/other/cpu.max": "100000 100000\n",
        "/sys/fs/cgroup/b/cpu.max": "100000 100000\n",
    }
    assert limits_of(files).whole_cpus == 2


def test_folder_that_is_missing_does_not_hide_its_parents() -> None:
    """A group that is not visible where its path says leaves what is visible above it."""
    files: dict[str, str | bytes | OSError] = {
        "/proc/self/cgroup": "0::/host/path\n",
        "/proc/self/mountinfo": V2_MOUNT,
        "/sys/fs/cgroup/cpu.max": "200000 100000\n",
    }
    assert limits_of(files).whole_cpus == 2


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("max\n", None),
        (f"{2 * GIB}\n", 2 * GIB),
        ("9223372036854771712\n", None),
        ("9223372036854710272\n", None),
        ("18446744073709551615\n", None),
        ("0\n", None),
        ("-1\n", None),
        ("lots\n", None),
        ("9" * 6000, None),
    ],
)
def test_memory_limit(text: str, size: int | None) -> None:
    """max, the huge numbers of version 1, zero and damage are no limit."""
    assert parse_bytes(text) == size
    assert limits_of({"/sys/fs/cgroup/memory.max": text}).memory_bytes == size
    assert limits_of({"/sys/fs/cgroup/memory/memory.limit_in_bytes": text}).memory_bytes == size


def test_unreadable_files_limit_nothing() -> None:
    """A permission error is as good as no file."""
    refusal = PermissionError(13, "Permission denied")
    names = ("/proc/self/cgroup", "/proc/self/mountinfo", "/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/memory.max")
    assert limits_of(dict.fromkeys(names, refusal)) == Limits()


def test_group_path_may_hold_colons() -> None:
    """Only the first two colons separate."""
    assert parse_groups("0::/a:b:c\n5:cpu,cpuacct:/x\nrubbish\n") == {"": "/a:b:c", "cpu": "/x", "cpuacct": "/x"}


def test_mount_point_with_a_space() -> None:
    """The kernel writes a space in a path as three octal digits."""
    line = "32 31 0:29 /my\\040box /mnt/c\\040g rw - cgroup cgroup rw,memory\n"
    assert parse_mounts(line) == (Mount(frozenset(("memory",)), "/my box", "/mnt/c g"),)


def test_other_file_systems_are_no_mounts() -> None:
    """Only cgroup and cgroup2 count, and of cgroup only the controllers of time and memory."""
    assert parse_mounts(V1_MOUNTS) == (
        Mount(frozenset(("cpu",)), "/", "/sys/fs/cgroup/cpu,cpuacct"),
        Mount(frozenset(("memory",)), "/", "/sys/fs/cgroup/memory"),
    )


@given(st.integers(1, 10**9), st.integers(1, 10**6))
def test_quota_is_never_rounded_up(quota: int, period: int) -> None:
    """Whole CPUs are at most what is paid for, and less by less than one, but never under one."""
    whole = limits_of({"/sys/fs/cgroup/cpu.max": f"{quota} {period}\n"}).whole_cpus
    assert whole is not None
    assert whole == max(1, quota // period)


@given(st.text(), st.text(), st.text(), st.text())
def test_any_text_has_an_answer(groups: str, mounts: str, quota: str, size: str) -> None:
    """Whatever the files hold, there is an answer, and a limit is positive."""
    limits = limits_of(
        {
            "/proc/self/cgroup": groups,
            "/proc/self/mountinfo": mounts,
            "/sys/fs/cgroup/cpu.max": quota,
            "/sys/fs/cgroup/memory.max": size,
        }
    )
    assert limits.whole_cpus is None or limits.whole_cpus >= 1
    assert limits.memory_bytes is None or limits.memory_bytes > 0
    parse_cpu_max(groups)


LINES = st.lists(
    st.sampled_from(
        [
            "0::/a/b",
            "3:cpu:/",
            "4:memory:/..",
            "x:y",
            ":::",
            *V1_MOUNTS.splitlines(),
            V2_MOUNT,
            "a - cgroup2 x y",
            " - ",
        ]
    )
)


@given(LINES, LINES)
def test_lines_in_any_order_have_an_answer(groups: list[str], mounts: list[str]) -> None:
    """True and damaged lines may be mixed."""
    files: dict[str, str | bytes | OSError] = {
        "/proc/self/cgroup": "\n".join(groups),
        "/proc/self/mountinfo": "\n".join(mounts),
        "/sys/fs/cgroup/cpu.max": "200000 100000",
    }
    assert limits_of(files).whole_cpus in (None, 2)
