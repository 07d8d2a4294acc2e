"""Settings: the one place that names our environment variables and says what their values mean.

Values are stripped, and lower-cased where they name things; empty means unset. Plugins own variables under a prefix of
their own (`hardpoint.hookspecs.Setting`).
"""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from hardpoint._names import normalise_distribution, normalise_name
from hardpoint._say import WARNING, say_once
from hardpoint.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hardpoint._machine import Machine

PREFIX: Final = "HARDPOINT_"
PLATFORM: Final = "HARDPOINT_PLATFORM"
PLUGINS: Final = "HARDPOINT_PLUGINS"
DISABLED_PLUGINS: Final = "HARDPOINT_DISABLED_PLUGINS"
STRICT: Final = "HARDPOINT_STRICT"
PROBE: Final = "HARDPOINT_PROBE"
PROBE_TIMEOUT: Final = "HARDPOINT_PROBE_TIMEOUT"
CACHE_DIR: Final = "HARDPOINT_CACHE_DIR"

KINDS: Final = ("attention", "mla_attention")
"""The kinds of backends; each has a variable ``HARDPOINT_<KIND>_BACKEND``."""

DESCRIPTIONS: Final[Mapping[str, str]] = {
    PLATFORM: "the platform, or several in order of preference, comma-separated; a last 'auto': or any other",
    "HARDPOINT_ATTENTION_BACKEND": "the attention backend of every layer, or several in order of preference",
    "HARDPOINT_MLA_ATTENTION_BACKEND": "the same for latent attention",
    PLUGINS: "only these plugins: platform/NAME, backend/NAME or a distribution, comma-separated",
    DISABLED_PLUGINS: "not these plugins; beats HARDPOINT_PLUGINS",
    STRICT: "1: the loss of a better candidate is an error, not a warning",
    PROBE: "inprocess: ask vendor libraries in this process (default); isolated: each in a child process",
    PROBE_TIMEOUT: "seconds that a tool, an isolated probe or another thread's resolution may take (default 5)",
    CACHE_DIR: "where compiled kernels and the like are kept",
}
"""Every variable of ours."""

DEFAULT_PROBE_TIMEOUT_SECONDS: Final = 5.0
INPROCESS: Final = "inprocess"
ISOLATED: Final = "isolated"

_YES: Final = frozenset({"1", "true", "yes", "on"})
_NO: Final = frozenset({"0", "false", "no", "off"})


class Settings(NamedTuple):
    """What the variables said at one moment. Empty tuples: unset.

    `platform` and `backends` hold registry names in order of preference; `plugins` and `disabled_plugins` hold
    ``platform/NAME``, ``backend/NAME`` or normalised distribution names. `variables` are those that were set, with
    their text: what is not among them is a default. A named tuple, because every start defines it and a frozen
    dataclass takes six times as long.
    """

    platform: tuple[str, ...] = ()
    backends: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    plugins: tuple[str, ...] = ()
    disabled_plugins: tuple[str, ...] = ()
    strict: bool = False
    probe: str = INPROCESS
    probe_timeout_seconds: float = DEFAULT_PROBE_TIMEOUT_SECONDS
    variables: Mapping[str, str] = MappingProxyType({})

    def source(self, variable: str) -> str:
        """Where the value that `variable` governs comes from: ``HARDPOINT_STRICT=1``, or ``default``."""
        value = self.variables.get(variable)
        return "default" if value is None else f"{variable}={value}"

    def as_dict(self) -> dict[str, object]:
        """The JSON form: the values, and the variables that they come from."""
        return {
            "platform": list(self.platform),
            "backends": {kind: list(names) for kind, names in sorted(self.backends.items())},
            "plugins": list(self.plugins),
            "disabled_plugins": list(self.disabled_plugins),
            "strict": self.strict,
            "probe": self.probe,
            "probe_timeout_seconds": self.probe_timeout_seconds,
            "variables": dict(sorted(self.variables.items())),
        }


def read_settings(machine: Machine) -> Settings:
    """Read every variable of ours once. Errors: `SettingsError` for a value that means nothing."""
    backends = {kind: names for kind in KINDS if (names := read_backend_variable(machine, kind))}
    values = {name: machine.variable(name) for name in DESCRIPTIONS}
    return Settings(
        platform=split_names(values[PLATFORM] or ""),
        backends=backends,
        plugins=split_plugins(values[PLUGINS] or ""),
        disabled_plugins=split_plugins(values[DISABLED_PLUGINS] or ""),
        strict=read_switch(machine, STRICT, default=False),
        probe=read_probe(machine),
        probe_timeout_seconds=read_probe_timeout(machine),
        variables={name: value.strip() for name, value in values.items() if value and value.strip()},
    )


@lru_cache(maxsize=64)
def backend_variable(kind: str) -> str:
    """The variable that names the backend of a kind: ``HARDPOINT_MLA_ATTENTION_BACKEND``."""
    return f"{PREFIX}{normalise_name(kind).upper()}_BACKEND"


def read_backend_variable(machine: Machine, kind: str) -> tuple[str, ...]:
    """The backends that the variable of this kind names now. The one setting that is read at every selection."""
    value = machine.variable(backend_variable(kind))
    return split_names(value) if value else ()


def read_switch(machine: Machine, variable: str, *, default: bool) -> bool:
    """A variable that is on or off. Errors: `SettingsError`."""
    value = (machine.variable(variable) or "").strip()
    if not value:
        return default
    if value.lower() in _YES:
        return True
    if value.lower() in _NO:
        return False
    raise _meaningless(variable, value, "1, true, yes, on, 0, false, no, off")


def read_probe(machine: Machine) -> str:
    """How vendor libraries are asked: ``inprocess`` or ``isolated``. Errors: `SettingsError`."""
    value = (machine.variable(PROBE) or "").strip()
    how = value.lower() or INPROCESS
    if how not in {INPROCESS, ISOLATED}:
        raise _meaningless(PROBE, value, "inprocess, isolated")
    return how


def read_probe_timeout(machine: Machine) -> float:
    """How long a tool or an isolated probe may take, in seconds. Errors: `SettingsError`."""
    value = (machine.variable(PROBE_TIMEOUT) or "").strip()
    if not value:
        return DEFAULT_PROBE_TIMEOUT_SECONDS
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    # False for NaN too.
    if not 0.0 < seconds < float("inf"):
        raise _meaningless(PROBE_TIMEOUT, value, "a number of seconds greater than 0")
    return seconds


@lru_cache(maxsize=256)
def split_names(text: str) -> tuple[str, ...]:
    """``"Torch-SDPA, auto"`` as registry names: ``("torch_sdpa", "auto")``. Commas or blanks separate; each once."""
    return tuple(dict.fromkeys(normalise_name(item) for item in text.replace(",", " ").split()))


def split_plugins(text: str) -> tuple[str, ...]:
    """Items ``platform/NAME`` or ``backend/NAME`` with registry names, and distributions with theirs."""
    items = text.replace(",", " ").split()
    return tuple(dict.fromkeys(normalise_name(item) if "/" in item else normalise_distribution(item) for item in items))


def unknown_variables(machine: Machine, owned: Iterable[str] = ()) -> dict[str, str | None]:
    """The variables with our prefix that nobody owns, each with the known name that was probably meant, or None.

    `owned` are the variables that plugins declare.
    """
    known = (*DESCRIPTIONS, *owned)
    strange = sorted(set(machine.variables(PREFIX)).difference(known))
    if not strange:
        return {}
    # Late: a process without misspelt variables does not pay for it.
    from difflib import get_close_matches

    # Without the prefix, which would make everything look alike.
    names = {name.removeprefix(PREFIX): name for name in known}
    close = {name: get_close_matches(name.removeprefix(PREFIX), names, n=1, cutoff=0.7) for name in strange}
    return {name: names[found[0]] if found else None for name, found in close.items()}


def warn_unknown(machine: Machine, owned: Iterable[str] = ()) -> None:
    """Warn once of each variable with our prefix that nobody owns: it has no effect, and somebody meant it to."""
    for name, meant in unknown_variables(machine, owned).items():
        guess = f"; did you mean {meant}?" if meant else f". Known: {', '.join(sorted((*DESCRIPTIONS, *owned)))}"
        say_once(WARNING, "unknown variable %s has no effect%s", name, guess)


def _meaningless(variable: str, value: str, accepted: str) -> SettingsError:
    return SettingsError(
        f"{variable}={value!r} means nothing; accepted: {accepted}. Correct it, or unset {variable}",
        setting=variable,
        value=value,
    )
