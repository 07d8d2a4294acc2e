"""What the control groups of this process allow: CPU time and memory.

Both generations of cgroups, and both at once (a hybrid system). A limit of any group from the process's own up to the
one that is mounted holds, so the smallest wins. The files are described in the kernel's ``admin-guide/cgroup-v1`` and
``admin-guide/cgroup-v2``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hardpoint import Machine

_T = TypeVar("_T")

_V2: Final = ""
"""The controller name under which /proc/self/cgroup lists the unified hierarchy."""

_UNLIMITED_BYTES: Final = 1 << 60
"""cgroup v1 writes "no limit" as the largest multiple of the page size (2**63 - 4096, or 2**63 - 65536)."""

_DEFAULT_PERIOD: Final = 100_000
"""Microseconds; the kernel's default where a file names only the quota."""


class Limits(NamedTuple):
    """The smallest limits along the path. None: no limit, or none that can be seen.

    `cpus` is CPU time per time (7.65: seven CPUs and two thirds), `whole_cpus` the same rounded down, but at least 1.
    """

    cpus: float | None = None
    whole_cpus: int | None = None
    memory_bytes: int | None = None


class Mount(NamedTuple):
    """A mounted hierarchy: its controllers (`_V2`: the unified one), the group at its root, the folder showing it."""

    controllers: frozenset[str]
    root: str
    folder: str


_USUAL_MOUNTS: Final = (
    Mount(frozenset((_V2,)), "/", "/sys/fs/cgroup"),
    Mount(frozenset(("cpu",)), "/", "/sys/fs/cgroup/cpu"),
    Mount(frozenset(("cpu",)), "/", "/sys/fs/cgroup/cpu,cpuacct"),
    Mount(frozenset(("memory",)), "/", "/sys/fs/cgroup/memory"),
)


def read_limits(machine: Machine) -> Limits:
    """Ask the machine. What cannot be read limits nothing; never raises for what the files hold."""
    groups = parse_groups(_read(machine, "/proc/self/cgroup") or "")
    mounts = parse_mounts(_read(machine, "/proc/self/mountinfo") or "") or _USUAL_MOUNTS
    quotas: list[tuple[int, int]] = []
    sizes: list[int] = []
    for mount in mounts:
        for folder in _folders(mount, groups):
            quota = size = None
            if _V2 in mount.controllers:
                quota = _parse(machine, f"{folder}/cpu.max", parse_cpu_max)
                size = _parse(machine, f"{folder}/memory.max", parse_bytes)
            if "cpu" in mount.controllers:
                quota = _read_v1_quota(machine, folder)
            if "memory" in mount.controllers:
                size = _parse(machine, f"{folder}/memory.limit_in_bytes", parse_bytes)
            if quota is not None:
                quotas.append(quota)
            if size is not None:
                sizes.append(size)
    memory_bytes = min(sizes, default=None)
    if not quotas:
        return Limits(memory_bytes=memory_bytes)
    return Limits(
        cpus=min(quota / period for quota, period in quotas),
        # A quota is time, not cores: one thread more than it pays for makes all of them wait for the next period.
        whole_cpus=max(1, min(quota // period for quota, period in quotas)),
        memory_bytes=memory_bytes,
    )


def parse_groups(text: str) -> dict[str, str]:
    """``/proc/self/cgroup`` as {controller: path of the process's group}; the unified hierarchy's controller is ''."""
    groups: dict[str, str] = {}
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3 and parts[2].startswith("/"):
            for controller in parts[1].split(","):
                groups.setdefault(controller, parts[2])
    return groups


def parse_mounts(text: str) -> tuple[Mount, ...]:
    """The hierarchies in ``/proc/self/mountinfo`` that can limit CPU time or memory."""
    mounts = []
    for line in text.splitlines():
        left, dash, right = line.partition(" - ")
        where, what = left.split(" "), right.split(" ")
        if not dash or len(where) < 6 or len(what) < 3 or what[0] not in ("cgroup", "cgroup2"):
            continue
        controllers = {_V2} if what[0] == "cgroup2" else {"cpu", "memory"}.intersection(what[2].split(","))
        if controllers:
            mounts.append(Mount(frozenset(controllers), _unescape(where[3]), _unescape(where[4])))
    return tuple(mounts)


def _unescape(path: str) -> str:
    # Space, tab, newline and backslash stand as three octal digits.
    return re.sub(r"\\([0-3][0-7]{2})", lambda match: chr(int(match[1], 8)), path)


def _folders(mount: Mount, groups: dict[str, str]) -> Iterator[str]:
    """The folder of the process's group in that hierarchy, and those above it, up to the mount."""
    path = next((groups[name] for name in sorted(mount.controllers) if name in groups), "/")
    root = mount.root.rstrip("/")
    parts: list[str] = []
    if path == root or path.startswith(f"{root}/"):
        parts = [part for part in path[len(root) :].split("/") if part]
    if ".." in parts:
        # A group outside the namespace's root. What can be seen of it is what is mounted.
        parts = []
    while True:
        yield "/".join([mount.folder.rstrip("/"), *parts])
        if not parts:
            return
        parts.pop()


def parse_cpu_max(text: str) -> tuple[int, int] | None:
    """``cpu.max`` (``400000 100000``, ``max 100000``) as (quota, period) in microseconds; None: unlimited."""
    words = text.split()
    return _quota(words[0], words[1] if len(words) > 1 else str(_DEFAULT_PERIOD)) if words else None


def _read_v1_quota(machine: Machine, folder: str) -> tuple[int, int] | None:
    quota = _read(machine, f"{folder}/cpu.cfs_quota_us")
    if quota is None:
        return None
    return _quota(quota, _read(machine, f"{folder}/cpu.cfs_period_us") or str(_DEFAULT_PERIOD))


def _quota(quota: str, period: str) -> tuple[int, int] | None:
    # -1 in cgroup v1 and "max" in v2 are no limit.
    microseconds, each = _positive(quota), _positive(period)
    return None if microseconds is None or each is None else (microseconds, each)


def parse_bytes(text: str) -> int | None:
    """A limit of memory; None for ``max``, for v1's huge numbers, and for what is none."""
    number = _positive(text)
    return None if number is None or number >= _UNLIMITED_BYTES else number


def _positive(text: str) -> int | None:
    text = text.strip()
    # The length also keeps int() from refusing 5,000 digits.
    return (int(text) or None) if text.isascii() and text.isdigit() and len(text) < 20 else None


def _read(machine: Machine, path: str) -> str | None:
    try:
        return machine.read_text(path)
    except (OSError, ValueError):
        # ValueError: a path with a NUL in it, from a damaged file.
        return None


def _parse(machine: Machine, path: str, parse: Callable[[str], _T | None]) -> _T | None:
    text = _read(machine, path)
    return None if text is None else parse(text)
