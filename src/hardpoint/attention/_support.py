"""Declared support: what a backend says it can do, as data that the core checks before the backend is imported.

A backend declares variants; a config passes if one variant accepts all of it. A variant is a guard (on which device,
with which package) and one limit per field of the request. A field that a variant does not mention is supported only at
its neutral value, so that a field which joins the request later cannot be taken for supported.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from hardpoint._reasons import Reason, ReasonCode, Scalar
from hardpoint.attention._config import FIELD_NAMES
from hardpoint.attention._limits import ANYTHING, Anything, Integers, Limit, OneOf
from hardpoint.errors import ContractError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hardpoint._capability import DeviceCapability
    from hardpoint.attention._config import AttentionConfig

__all__ = ["ANYTHING", "Anything", "AttentionSupport", "AttentionVariant", "Integers", "Limit", "OneOf"]

_LIMITED: Final = tuple(name for name in FIELD_NAMES if name != "kind")
# Their neutral value is the absence of the thing: a limit on the thing does not exclude it.
_OPTIONAL: Final = frozenset(
    ("kv_cache_dtype", "sliding_window", "soft_cap", "sinks", "alibi", "kv_sharing", "batch_invariant")
)
_NEUTRAL_TEXT: Final = {
    "head_size": "a declared size",
    "v_head_size": "the same as head_size",
    "num_kv_heads": "the same as num_heads",
    "dtype": "a declared dtype",
    "kv_cache_dtype": "auto",
    "block_size": "no cache",
    "attention_type": "decoder",
    "causal": "the attention type's own",
    "sliding_window": "none",
    "soft_cap": "none",
    "kv_lora_rank": "none",
    "qk_rope_head_dim": "none",
}


# Most refusals of a start-up are the same few, asked again per layer kind. Strings and numbers only: nothing is kept
# alive.
@lru_cache(maxsize=1024, typed=True)
def _refusal(name: str, value: Scalar, accepted: str) -> Reason:
    return Reason(
        code=ReasonCode(name), message=f"{name}={value}; accepts {accepted}", requested=value, accepted=accepted
    )


@lru_cache(maxsize=1024)
def _guard_refusal(requested: str | None, accepted: str, message: str) -> Reason:
    return Reason(code=ReasonCode.CAPABILITY, message=message, requested=requested, accepted=accepted)


def _matches(arch: str, pattern: str) -> bool:
    return arch.startswith(pattern[:-1]) if pattern.endswith("*") else arch == pattern


def _words(owner: str, value: object) -> tuple[Any, ...]:  # Any: names or numbers, as the member has it
    # A bare string would be searched letter by letter, and "cud" would then be a runtime.
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ContractError(f"{owner}={value!r}: expected a tuple", remedy=f"write {owner}=({value!r},)")
    return tuple(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionVariant:
    """One way in which a backend can work: a guard and the limits that hold under it.

    Guard: `runtimes` and `architectures` (empty: any; an architecture ending in ``*`` is a prefix), `capability_floor`
    ``(major, minor)``, `capability_majors` (empty: any), `features` (all needed), `package` (a requirement specifier).
    `group_size` limits query heads per key/value head. Every other member limits the field of its name; None: neutral
    only.
    """

    runtimes: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    capability_floor: tuple[int, int] | None = None
    capability_majors: tuple[int, ...] = ()
    features: tuple[str, ...] = ()
    package: str | None = None
    group_size: Limit | None = None

    head_size: Limit | None = None
    v_head_size: Limit | None = None
    num_heads: Limit | None = None
    num_kv_heads: Limit | None = None
    dtype: Limit | None = None
    kv_cache_dtype: Limit | None = None
    block_size: Limit | None = None
    attention_type: Limit | None = None
    causal: Limit | None = None
    sliding_window: Limit | None = None
    sinks: Limit | None = None
    alibi: Limit | None = None
    soft_cap: Limit | None = None
    kv_sharing: Limit | None = None
    batch_invariant: Limit | None = None
    max_model_len: Limit | None = None
    kv_lora_rank: Limit | None = None
    qk_rope_head_dim: Limit | None = None
    qk_nope_head_dim: Limit | None = None

    # Prepared once, because a selection asks every variant of every backend.
    _mentioned: frozenset[str] = field(default=frozenset(), init=False, repr=False, compare=False)
    _always: tuple[tuple[str, Limit], ...] = field(default=(), init=False, repr=False, compare=False)
    _if_demanded: tuple[tuple[str, Limit], ...] = field(default=(), init=False, repr=False, compare=False)
    _asks_device: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("runtimes", "architectures", "capability_majors", "features"):
            object.__setattr__(self, name, _words(f"AttentionVariant.{name}", getattr(self, name)))
        limits: list[tuple[str, Limit]] = []
        for name in (*_LIMITED, "group_size"):
            if (limit := getattr(self, name)) is None:
                continue
            if not (hasattr(limit, "accepts") and hasattr(limit, "describe")):
                raise ContractError(
                    f"AttentionVariant.{name}={limit!r}: expected a limit such as OneOf(…), Integers(…) or ANYTHING"
                )
            limits.append((name, limit))
        asks = (self.runtimes, self.architectures, self.capability_floor, self.capability_majors, self.features)
        effective = [(name, limit) for name, limit in limits if limit != ANYTHING]
        for name, value in (
            ("_mentioned", frozenset(name for name, _ in limits)),
            ("_always", tuple(item for item in effective if item[0] not in _OPTIONAL)),
            ("_if_demanded", tuple(item for item in effective if item[0] in _OPTIONAL)),
            ("_asks_device", any(asks)),
        ):
            object.__setattr__(self, name, value)

    def guard_reasons(
        self, capability: DeviceCapability | None, package_reason: Callable[[str], Reason | None] | None = None
    ) -> list[Reason]:
        """Reasons why this variant does not exist on such a device. `package_reason` checks a requirement.

        On another runtime that alone is the reason: versions, architectures and features of two runtimes do not
        compare.
        """
        reasons: list[Reason] = []
        if self._asks_device:
            self._check_device(capability, reasons)
        if self.package is not None and package_reason is not None and (reason := package_reason(self.package)):
            reasons.append(reason)
        return reasons

    def _check_device(self, capability: DeviceCapability | None, reasons: list[Reason]) -> None:
        if capability is None:
            reasons.append(_guard_refusal(None, "a device whose capability is known", "capability unknown"))
            return
        if self.is_of_other_runtime(capability):
            accepted = " or ".join(self.runtimes)
            reasons.append(
                _guard_refusal(capability.runtime, accepted, f"runtime {capability.runtime}; runs on {accepted}")
            )
            return
        if self.architectures:
            arch = capability.arch
            if arch not in self.architectures and not any(_matches(arch, pattern) for pattern in self.architectures):
                accepted = " or ".join(self.architectures)
                reasons.append(_guard_refusal(arch, accepted, f"architecture {arch}; runs on {accepted}"))
        if self.capability_floor is not None or self.capability_majors:
            self._check_version(capability.version, reasons)
        if self.features and not capability.features.issuperset(self.features):
            missing = ", ".join(name for name in self.features if name not in capability.features)
            accepted = f"a device with {', '.join(self.features)}"
            reasons.append(_guard_refusal(missing, accepted, f"the device lacks {missing}"))

    def _check_version(self, version: tuple[int, int] | None, reasons: list[Reason]) -> None:
        shown = "unknown" if version is None else f"{version[0]}.{version[1]}"
        floor = self.capability_floor
        if floor is not None and (version is None or version < floor):
            accepted = f">= {floor[0]}.{floor[1]}"
            reasons.append(_guard_refusal(shown, accepted, f"capability {shown}; needs {accepted}"))
        if self.capability_majors and (version is None or version[0] not in self.capability_majors):
            accepted = " or ".join(f"{major}.x" for major in self.capability_majors)
            reasons.append(_guard_refusal(shown, accepted, f"capability {shown}; runs on {accepted}"))

    def is_of_other_runtime(self, capability: DeviceCapability | None) -> bool:
        """Whether this variant is for devices of other runtimes than that one."""
        return capability is not None and bool(self.runtimes) and capability.runtime not in self.runtimes

    def refused_fields(self, config: AttentionConfig) -> list[str]:
        """The fields of `config` that are not accepted, and ``group_size`` where that is not."""
        demands = config.demands
        refused = [] if demands <= self._mentioned else [name for name in demands if name not in self._mentioned]
        for name, limit in self._always:
            if not limit.accepts(getattr(config, name)):
                refused.append(name)
        for name, limit in self._if_demanded:
            if name in demands and not limit.accepts(getattr(config, name)):
                refused.append(name)
        return refused

    def limit_reasons(self, config: AttentionConfig) -> list[Reason]:
        """Reasons against the config itself, one per field that is not accepted, in the order of the fields."""
        return self.explain(config, self.refused_fields(config))

    def explain(self, config: AttentionConfig, refused: list[str]) -> list[Reason]:
        """A reason for each of the `refused_fields`, in the order of the fields."""
        reasons = []
        for name in sorted(refused, key=_POSITION.__getitem__) if len(refused) > 1 else refused:
            limit: Limit | None = getattr(self, name)
            accepted = _NEUTRAL_TEXT.get(name, "False") if limit is None else limit.describe()
            if name == "group_size":
                reasons.append(_group_size_refusal(config.group_size, accepted))
            else:
                reasons.append(_refusal(name, getattr(config, name), accepted))
        return reasons


_POSITION: Final = {name: position for position, name in enumerate((*_LIMITED, "group_size"))}


def _group_size_refusal(size: int, accepted: str) -> Reason:
    return Reason(
        code=ReasonCode.NUM_KV_HEADS,
        message=f"{size} query heads per key/value head; accepts {accepted}",
        requested=size,
        accepted=accepted,
    )


@dataclass(frozen=True, slots=True)
class AttentionSupport:
    """What a backend declares: its variants, best first."""

    variants: tuple[AttentionVariant, ...]

    def __post_init__(self) -> None:
        variants = _words("AttentionSupport.variants", self.variants)
        for variant in variants:
            if not isinstance(variant, AttentionVariant):
                raise ContractError(f"AttentionSupport.variants holds {variant!r}: expected an AttentionVariant")
        object.__setattr__(self, "variants", variants)

    def reasons(
        self,
        capability: DeviceCapability | None,
        config: AttentionConfig,
        package_reason: Callable[[str], Reason | None] | None = None,
    ) -> tuple[Reason, ...]:
        """Empty if one variant accepts the config on such a device; else the nearest variant's reasons, all of them.

        The nearest one is of the device's own runtime if any is, then has the fewest reasons against the device (a
        package can be installed), then the fewest guard reasons, then the fewest limit reasons, then is the first.
        """
        if len(self.variants) == 1:
            variant = self.variants[0]
            return (
                *variant.guard_reasons(capability, package_reason),
                *variant.explain(config, variant.refused_fields(config)),
            )
        nearest: tuple[tuple[bool, int, int, int], AttentionVariant, list[Reason], list[str]] | None = None
        for variant in self.variants:
            guard = variant.guard_reasons(capability, package_reason)
            # Against the device, then against the package.
            of_device = len(guard)
            if guard and variant.package is not None and guard[-1].code is not ReasonCode.CAPABILITY:
                of_device -= 1
            distance = (variant.is_of_other_runtime(capability), of_device, len(guard))
            if guard and nearest is not None and distance > nearest[0][:3]:
                continue
            refused = variant.refused_fields(config)
            if not guard and not refused:
                return ()
            if nearest is None or (*distance, len(refused)) < nearest[0]:
                nearest = ((*distance, len(refused)), variant, guard, refused)
        if nearest is None:
            return (Reason(code=ReasonCode.CONTRACT, message="declares no variant at all"),)
        _, variant, guard, refused = nearest
        return (*guard, *variant.explain(config, refused))
