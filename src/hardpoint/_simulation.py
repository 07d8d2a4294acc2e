"""Simulated machines: put together from device profiles, to be detected as real ones are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hardpoint._machine_memory import InMemoryMachine
from hardpoint._names import normalise_distribution
from hardpoint._process import process
from hardpoint._profile_format import ProfileContent, fill_in
from hardpoint._profiles import Found, Profile, choose, collect, say_faults
from hardpoint._settings import DISABLED_PLUGINS, PLUGINS
from hardpoint._simulation_host import generic_host
from hardpoint._torch_build import version_file
from hardpoint.errors import ContractError, SimulationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hardpoint._machine import Json

MAX_DEVICES: Final = 240
"""As many as there are bus numbers to give."""

_FIRST_BUS: Final = 0x10
_SITE: Final = "/usr/lib/python3/site-packages"
"""Where the files of a simulated machine's distributions are."""


class _Part(NamedTuple):
    """Some devices of one profile."""

    profile: Profile
    content: ProfileContent
    device_count: int


class SimulatedMachine(InMemoryMachine):
    """Devices that are not there, and the packages that are: those of this installation, unless it is told others."""

    def __init__(self, installed: Mapping[str, str | None], **facts: Any) -> None:  # noqa: ANN401  # InMemoryMachine's
        super().__init__(distributions={name: text for name, text in installed.items() if text is not None}, **facts)
        self._told = {normalise_distribution(name) for name in installed}

    def distribution_version(self, name: str) -> str | None:
        told = super().distribution_version(name)
        if told is not None or normalise_distribution(name) in self._told:
            return told
        version = process().machine.distribution_version(name)
        # What follows the plus says for which hardware it was built here.
        return None if version is None else version.partition("+")[0]


def simulate(
    spec: str | Iterable[str],
    count: int = 1,
    *,
    distributions: Mapping[str, str | None] | None = None,
    variables: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
) -> SimulatedMachine:
    """A machine with these devices, on which everything works up to loading a kernel. Nothing of it is real.

    `spec` names device profiles (`list_profiles`): ``"h100"``, ``"h100:8,a100"`` or ``["h100", "a100"]``; `count` is
    for those that state no number. A CPU's profile describes the machine itself; without one it gets a generic
    processor.
    `distributions` are versions of installed packages by name (None: not installed); any other package is there if it
    is here. A version of torch that ends in ``+cu128``, ``+rocm6.4`` or ``+cpu`` has that build. `files` adds files,
    those of distributions under ``/usr/lib/python3/site-packages``. `variables` are all that its environment has, apart
    from ``HARDPOINT_PLUGINS`` and ``HARDPOINT_DISABLED_PLUGINS``, which are this process's unless they are given.

    ``hardpoint.resolve(machine=hardpoint.simulate("h100", count=8))`` detects it as it would a real one. Loads no
    torch. Errors: `UnknownProfileError`, `SimulationError` (both `ValueError`); `ContractError` for a profile that
    breaks its format.
    """
    parts = _parts(spec, count)
    merged: dict[str, Json] = {}
    # Who describes the machine itself comes first, for the first to say something is believed.
    for part in sorted(parts, key=lambda part: not part.content.is_host):
        _merge(merged, {"machine": part.content.machine, **part.content.per_machine}, part.profile)
    _merge_devices(merged, parts)
    if not any(part.content.is_host for part in parts):
        for key, value in generic_host(merged["machine"]).items():
            merged[key] = {**value, **merged.get(key, {})}
    return _machine(merged, variables or {}, distributions or {}, files or {})


def _machine(
    facts: dict[str, Json],
    variables: Mapping[str, str],
    distributions: Mapping[str, str | None],
    files: Mapping[str, str],
) -> SimulatedMachine:
    machine = facts["machine"]
    cpu_count = machine.get("cpu_count")
    affinity = machine.get("cpu_affinity")
    if affinity is None and cpu_count is not None and machine.get("system", "Linux") == "Linux":
        affinity = range(cpu_count)
    installed = {**facts.get("distributions", {}), **distributions}
    torch = version_file(installed.get("torch") or "")
    if torch is not None:
        files = {f"{_SITE}/torch/version.py": torch, **files}
    return SimulatedMachine(
        installed,
        system=machine.get("system", "Linux"),
        architecture=machine.get("architecture", "x86_64"),
        kernel_release=machine.get("kernel_release", ""),
        cpu_count=cpu_count,
        affinity=affinity,
        total_memory_bytes=machine.get("total_memory_bytes"),
        variables={**_own_gates(), **facts.get("variables", {}), **variables},
        files={**facts.get("files", {}), **files},
        directories=facts.get("directories", ()),
        links=facts.get("links"),
        distribution_folders=dict.fromkeys(installed, _SITE),
        tools={key: _tool(answer) for key, answer in facts.get("tools", {}).items()},
        probes=facts.get("probes"),
    )


def _own_gates() -> dict[str, str]:
    """Which plugins may be loaded is a matter of this installation, whatever machine they are asked about."""
    real = process().machine
    return {name: value for name in (PLUGINS, DISABLED_PLUGINS) if (value := real.variable(name)) is not None}


def _tool(answer: Json) -> str:
    if isinstance(answer, str):
        return answer
    import json

    return json.dumps(answer["json"], indent=2) + "\n"


def _parts(spec: str | Iterable[str], count: int) -> list[_Part]:
    if type(count) is not int or count < 1:
        raise SimulationError(f"count={count!r}: expected a whole number of devices, at least 1")
    items = spec.split(",") if isinstance(spec, str) else list(spec)
    if not all(isinstance(item, str) for item in items):
        raise SimulationError(f"simulate({spec!r}): expected names of device profiles")
    collection = collect()
    say_faults(collection)
    parts = [_part(item, count, choose(collection, item.partition(":")[0])) for item in items if item.strip()]
    if not parts:
        choose(collection, "")
    hosts = [part.profile.name for part in parts if part.content.is_host]
    if len(hosts) > 1:
        raise SimulationError(f"{' and '.join(hosts)} describe the machine itself, and it can be one of them only")
    if count > 1 and len(hosts) == len(parts):
        raise SimulationError(f"count={count}: {hosts[0]} describes the machine itself, of which there is one")
    systems = {part.content.machine.get("system", "Linux"): part.profile.name for part in reversed(parts)}
    if len(systems) > 1:
        told = " and ".join(f"{name} of {system}" for system, name in sorted(systems.items()))
        raise SimulationError(f"{told} cannot be in one machine: it has one operating system")
    total = sum(part.device_count for part in parts)
    if total > MAX_DEVICES:
        raise SimulationError(f"{total} devices: a simulated machine has at most {MAX_DEVICES}")
    return parts


def _part(item: str, count: int, found: Found) -> _Part:
    content = found.content
    if content is None:  # pragma: no cover  # `choose` returns no such
        raise SimulationError(f"profile {found.profile.name} is unusable")
    _, colon, text = item.partition(":")
    number = text.strip()
    if colon:
        if not (number.isascii() and number.isdigit() and len(number) < 6 and int(number) > 0):
            raise SimulationError(f"{item.strip()!r}: expected NAME or NAME:COUNT, with a count of at least 1")
        count = int(number)
        if content.is_host and count > 1:
            raise SimulationError(f"{item.strip()!r}: {found.profile.name} describes the machine itself")
    return _Part(found.profile, content, count * content.part_devices)


def _merge_devices(merged: dict[str, Json], parts: Sequence[_Part]) -> None:
    """`per_device` of each device, numbered within its platform."""
    import uuid

    numbers: dict[str, int] = {}
    bus = _FIRST_BUS
    for part in parts:
        if part.content.is_host:
            continue
        for _ in range(part.device_count):
            index = numbers.get(part.profile.platform, 0)
            numbers[part.profile.platform] = index + 1
            seed = f"hardpoint:{part.profile.platform}/{part.profile.name}/{index}"
            names: dict[str, int | str] = {
                "index": index,
                "node": index + 1,
                "bus": bus,
                "uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, seed)),
            }
            bus += 1
            _merge(merged, fill_in(part.content.per_device, names), part.profile)


def _merge(into: dict[str, Json], facts: Mapping[str, Json], profile: Profile, where: str = "") -> None:
    """Mappings merge, lists are joined; of two other values the first stays: a machine has one driver."""
    for key, value in facts.items():
        if key not in into:
            into[key] = _copy(value)
            continue
        known, path = into[key], f"{where}[{key!r}]"
        if isinstance(known, dict) and isinstance(value, dict):
            _merge(known, value, profile, path)
        elif isinstance(known, list) and isinstance(value, list):
            known += _copy(value)
        elif isinstance(known, dict | list) or isinstance(value, dict | list):
            raise ContractError(
                f"{profile.provenance}: profile {profile.name} has {value!r:.80} for {path} where the machine already "
                f"has {known!r:.80}; one of the two is not of the right kind",
                plugin=profile.provenance.plugin,
            )


def _copy(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value
