"""``/proc/cpuinfo``: records of ``key : value``, one per CPU, and a shared part. Keys differ with the architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

READ_LIMIT_BYTES: Final = 16 << 20
"""Two kilobytes per CPU, for 8192 of them."""


_MAY_BE_CUT: Final = 32 << 10
"""Characters. Below, a missing empty line at the end is a matter of taste."""


class CpuInfo(NamedTuple):
    """Keys are in lower case. `cpus` is by number; `shared` has what stands in no CPU's record (as on s390x)."""

    shared: Mapping[str, str]
    cpus: Mapping[int, Mapping[str, str]]

    def first(self, *keys: str) -> str | None:
        """The first value, not empty, of any of the keys, in the first CPU that has it, or in the shared part."""
        for record in (*self.cpus.values(), self.shared):
            for key in keys:
                if record.get(key):
                    return record[key]
        return None


def parse_cpuinfo(text: str) -> CpuInfo:
    """Never raises: a line without a colon is passed over."""
    if len(text) >= _MAY_BE_CUT and not text.endswith("\n\n"):
        # Every record ends with an empty line. A recorded file may have been cut, and half a line of flags says too
        # little.
        text = text[: text.rfind("\n\n") + 2]
    shared: dict[str, str] = {}
    cpus: dict[int, Mapping[str, str]] = {}
    record: dict[str, str] = {}
    for line in [*text.splitlines(), ""]:
        key, colon, value = line.partition(":")
        if colon:
            record.setdefault(key.strip().lower(), value.strip())
        elif not line.strip():
            number = record.get("processor", "")
            if number.isascii() and number.isdigit() and len(number) < 10:
                cpus.setdefault(int(number), record)
            else:
                for name, shown in record.items():
                    shared.setdefault(name, shown)
            record = {}
    return CpuInfo(shared, cpus)


def common_words(
    info: CpuInfo, key: str, cpus: AbstractSet[int] | None
) -> tuple[frozenset[str], frozenset[str]] | None:
    """The words under a key that all of these CPUs have, and those that only some have. None: the key is nowhere.

    `cpus` None, or naming none that is listed: all that are listed. A CPU without the key (the file was cut off) has no
    word, so that nothing is assumed of it.
    """
    records = [record for number, record in info.cpus.items() if cpus is None or number in cpus]
    records = records or list(info.cpus.values()) or [info.shared]
    common: frozenset[str] | None = None
    union: frozenset[str] = frozenset()
    # CPUs of one kind have the very same line: it is split once.
    for line in dict.fromkeys(record.get(key, info.shared.get(key, "")) for record in records):
        words = frozenset(line.split())
        union |= words
        common = words if common is None else common & words
    if common is None or not union:
        return None
    return common, union - common
