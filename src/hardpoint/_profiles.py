"""The device profiles that the installed platform plugins bring, each a JSON file of the plugin's distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from hardpoint._names import near_miss, normalise_name
from hardpoint._process import process
from hardpoint._profile_format import FormatError, ProfileContent, parse_profile
from hardpoint._race import start_race
from hardpoint._say import WARNING, say_once
from hardpoint._settings import read_settings
from hardpoint.errors import ContractError, UnknownProfileError
from hardpoint.hookspecs import PlatformSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from importlib.resources.abc import Traversable

    from hardpoint._plugins import LoadedPlugin
    from hardpoint._reasons import Candidate, Provenance

_MAX_BYTES: Final = 1 << 22


class Profile(NamedTuple):
    """A device profile. `name` is its file's; any spelling of it, or of an alias, is accepted.

    `fault`: why it cannot be used; then what could not be read is empty.
    """

    name: str
    platform: str
    description: str
    sources: tuple[str, ...]
    aliases: tuple[str, ...]
    provenance: Provenance
    file: str
    fault: str | None = None

    def as_dict(self) -> dict[str, object]:
        """The JSON form."""
        return {
            "name": self.name,
            "platform": self.platform,
            "description": self.description,
            "sources": list(self.sources),
            "aliases": list(self.aliases),
            "provenance": self.provenance.as_dict(),
            "file": self.file,
            "fault": self.fault,
        }


class Found(NamedTuple):
    """A profile, and what its file says; None where that is unusable."""

    profile: Profile
    content: ProfileContent | None


class Collection(NamedTuple):
    """All profiles by name and platform, and the plugins that were not asked for theirs."""

    found: tuple[Found, ...]
    out: tuple[Candidate, ...]


def list_profiles() -> tuple[Profile, ...]:
    """The profiles of every platform plugin that may be loaded here, for `simulate`, by platform and name.

    Imports the plugins' light modules and nothing else of them. A file that cannot be used is listed with its fault;
    so is nothing of a plugin that is disabled, not trusted, or cannot be loaded.
    """
    return tuple(item.profile for item in collect(inspecting=True).found)


def collect(*, inspecting: bool = False) -> Collection:
    """Read every profile. Under the failure rule, as in a race; `inspecting` records a plugin's bug."""
    state = process()
    race = start_race(state.registry, "platform", read_settings(state.machine), inspecting=inspecting)
    found = [item for loaded in race.runners for item in _profiles_of(loaded)]
    found.sort(key=lambda item: (item.profile.provenance.plugin, item.profile.name))
    return Collection(tuple(_told_apart(found)), race.out)


def choose(collection: Collection, name: str) -> Found:
    """The profile of a name or alias. Errors: `UnknownProfileError`; `ContractError` where its file is unusable."""
    key = _key(name)
    matching = [item for item in collection.found if key in _keys(item.profile)]
    usable = [item for item in matching if item.profile.fault is None]
    if len(usable) == 1:
        return usable[0]
    if matching:
        profile = matching[0].profile
        raise ContractError(f"profile {name!r}: {profile.fault}", plugin=profile.provenance.plugin)
    raise _unknown(name, collection)


def say_faults(collection: Collection) -> None:
    """One WARNING for each file that cannot be used: whoever looks for its profile should not have to guess."""
    for item in collection.found:
        if item.profile.fault is not None:
            say_once(WARNING, "device profile left out: %s", item.profile.fault)


def _unknown(name: str, collection: Collection) -> UnknownProfileError:
    usable = [item.profile for item in collection.found if item.profile.fault is None]
    names = {key: profile.name for profile in usable for key in _keys(profile)}
    close = near_miss(name, sorted(names))
    # Of names that differ in a number only, all are worth showing.
    similar = sorted(
        {shown for key, shown in names.items() if len(key) > 1 and (key in _key(name) or _key(name) in key)}
    )
    guesses = list(dict.fromkeys([*([names[close]] if close and _key(name) else []), *(similar if _key(name) else [])]))
    guess = f"; did you mean {' or '.join(map(repr, guesses[:4]))}?" if guesses else "."
    by_platform: dict[str, list[str]] = {}
    for profile in usable:
        also = f" (or {', '.join(profile.aliases)})" if profile.aliases else ""
        by_platform.setdefault(profile.platform, []).append(f"{profile.name}{also}")
    listed = "; ".join(f"{platform}: {', '.join(items)}" for platform, items in sorted(by_platform.items()))
    lines = [f"unknown device profile {name!r}{guess} Known are {listed or 'none'}"]
    lines += [f"not usable: {item.profile.fault}" for item in collection.found if item.profile.fault is not None]
    lines += [f"not asked for profiles: {candidate.describe()}" for candidate in collection.out]
    return UnknownProfileError("\n  ".join(lines), profile=name, known=tuple(profile.name for profile in usable))


def _profiles_of(loaded: LoadedPlugin) -> Iterator[Found]:
    spec = loaded.spec
    if not isinstance(spec, PlatformSpec) or spec.profiles is None:
        return
    try:
        files = sorted(
            (file for file in _folder(spec.profiles).iterdir() if file.name.endswith(".json")),
            key=lambda file: file.name,
        )
    except (OSError, ImportError, ValueError) as error:
        yield Found(_broken(loaded, "?", f"its profiles {spec.profiles!r} cannot be listed: {error}"), None)
        return
    for file in files:
        yield _read(loaded, file)


def _read(loaded: LoadedPlugin, file: Traversable) -> Found:
    name = file.name.removesuffix(".json")
    try:
        content = parse_profile(_bytes_of(file))
    except (OSError, FormatError) as error:
        return Found(_broken(loaded, name, f"{file.name}: {error}"), None)
    if content.platform != loaded.name:
        fault = f"{file.name}: platform is {content.platform!r}; accepted: {loaded.name!r}, whose plugin brings it"
        return Found(_broken(loaded, name, fault), None)
    profile = Profile(
        name=name,
        platform=content.platform,
        description=content.description,
        sources=content.sources,
        aliases=content.aliases,
        provenance=loaded.provenance,
        file=str(file),
    )
    return Found(profile, content)


def _bytes_of(file: Traversable) -> bytes:
    with file.open("rb") as stream:
        content = stream.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise FormatError(f"it is longer than {_MAX_BYTES} bytes")
    return content


def _broken(loaded: LoadedPlugin, name: str, fault: str) -> Profile:
    return Profile(
        name=name,
        platform=loaded.name,
        description="",
        sources=(),
        aliases=(),
        provenance=loaded.provenance,
        file=f"{name}.json",
        fault=f"{loaded.provenance}: {fault}",
    )


def _told_apart(found: Iterable[Found]) -> Iterator[Found]:
    """Every profile whose name or alias another one has too becomes a fault that names both."""
    found = list(found)
    for item in found:
        profile = item.profile
        rivals = [
            other.profile for other in found if other is not item and _keys(other.profile) & _keys(profile)
        ] if profile.fault is None else []  # fmt: skip
        rivals = [rival for rival in rivals if rival.fault is None]
        if not rivals:
            yield item
            continue
        shared = sorted({key for rival in rivals for key in _keys(rival) & _keys(profile)})
        both = " and ".join(f"{one.name}.json of {one.provenance}" for one in (profile, *rivals))
        fault = f"{len(rivals) + 1} profiles are called {', '.join(map(repr, shared))}: {both}; uninstall all but one"
        yield Found(profile._replace(fault=fault), None)


def _keys(profile: Profile) -> frozenset[str]:
    return frozenset(map(_key, (profile.name, *profile.aliases)))


def _key(name: str) -> str:
    return normalise_name(name).replace(" ", "_")


def _folder(profiles: str) -> Traversable:
    """The resource folder ``"package:folder"``; the package is not imported. Errors: `ImportError`, `OSError`."""
    from importlib.util import find_spec

    package, _, folder = profiles.partition(":")
    spec = find_spec(package)
    if spec is None:
        raise ModuleNotFoundError(f"no package {package!r}", name=package)
    # What importlib.resources does once it has imported the package, which nobody needs here.
    get_reader = getattr(spec.loader, "get_resource_reader", None)
    reader = None if get_reader is None else get_reader(package)
    if reader is not None:
        root: Traversable = reader.files()
    elif spec.submodule_search_locations:
        from pathlib import Path

        root = Path(next(iter(spec.submodule_search_locations)))
    else:
        raise ModuleNotFoundError(f"{package!r} is no package with files", name=package)
    return root.joinpath(*folder.split("/"))
