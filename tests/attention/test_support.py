from __future__ import annotations

import gc
import pickle
import weakref
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any, cast

import pytest

from hardpoint._capability import DeviceCapability
from hardpoint._reasons import Reason, ReasonCode
from hardpoint.attention import (
    ANYTHING,
    Anything,
    AttentionConfig,
    AttentionSupport,
    AttentionVariant,
    Integers,
    Limit,
    OneOf,
)
from hardpoint.attention._config import FIELD_NAMES
from hardpoint.errors import ContractError

DENSE: dict[str, Any] = {"head_size": 64, "num_heads": 8, "dtype": "bfloat16"}
LATENT: dict[str, Any] = {
    "kind": "mla_attention",
    "head_size": 576,
    "num_heads": 16,
    "dtype": "bfloat16",
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
}
CPU = DeviceCapability(runtime="cpu", arch="x86-64-v4", features=frozenset({"bf16", "amx_tile"}))
PLAIN = AttentionVariant(head_size=ANYTHING, dtype=ANYTHING)
OPEN = AttentionVariant(**dict.fromkeys((name for name in FIELD_NAMES if name != "kind"), cast("Any", ANYTHING)))
# For each field: a request that asks something of it, what a variant that never mentions it says it accepts.
UNMENTIONED: dict[str, tuple[dict[str, Any], str]] = {
    "head_size": ({}, "a declared size"),
    "v_head_size": ({"v_head_size": 32}, "the same as head_size"),
    "num_kv_heads": ({"num_kv_heads": 2}, "the same as num_heads"),
    "dtype": ({}, "a declared dtype"),
    "kv_cache_dtype": ({"kv_cache_dtype": "int8"}, "auto"),
    "block_size": ({"block_size": 16}, "no cache"),
    "attention_type": ({"attention_type": "encoder"}, "decoder"),
    "causal": ({"causal": False}, "the attention type's own"),
    "sliding_window": ({"sliding_window": 1}, "none"),
    "sinks": ({"sinks": True}, "False"),
    "alibi": ({"alibi": True}, "False"),
    "soft_cap": ({"soft_cap": 1.0}, "none"),
    "kv_sharing": ({"kv_sharing": True}, "False"),
    "batch_invariant": ({"batch_invariant": True}, "False"),
    "kv_lora_rank": (LATENT, "none"),
    "qk_rope_head_dim": (LATENT, "none"),
}


def cuda(version: str, *features: str) -> DeviceCapability:
    """A device of that compute capability."""
    return DeviceCapability.parse(version, features=frozenset(features))


def limited(name: str, limit: Limit) -> AttentionVariant:
    """A plain variant with one more limit."""
    changes: dict[str, Any] = {name: limit}
    return replace(PLAIN, **changes)


def without(name: str) -> AttentionVariant:
    """A variant that takes everything and does not mention this field."""
    changes: dict[str, Any] = {name: None}
    return replace(OPEN, **changes)


def messages(variant: AttentionVariant, capability: DeviceCapability | None, **changes: Any) -> list[str]:
    """What a variant says against the plain request with some fields changed."""
    config = AttentionConfig(**{**DENSE, **changes})
    return [str(reason) for reason in AttentionSupport((variant,)).reasons(capability, config)]


@pytest.mark.parametrize(
    ("limit", "taken", "refused", "text"),
    [
        (ANYTHING, [None, 0, "x", True], [], "any value"),
        (OneOf(64, 128), [64, 128], [96, None, "64"], "64 or 128"),
        (OneOf("float16", "bfloat16"), ["float16"], ["float32", 16], "float16 or bfloat16"),
        (OneOf(1), [1], [True], "1"),
        (OneOf(True), [True], [1, False], "True"),
        (OneOf(None, 0), [None, 0], [False], "None or 0"),
        (OneOf(), [], [None, 1], ""),
        (Integers(), [1, 1000], [0, -1, None, "x"], "any positive number"),
        (Integers(minimum=0), [0, 1], [-1], "any number"),
        (Integers(or_none=True), [None, 1], [0], "any positive number (or none)"),
        (Integers(multiple_of=8, maximum=256), [8, 256], [4, 12, 264], "a multiple of 8, at most 256"),
        (Integers(minimum=32, maximum=64), [32, 64], [31, 65], "at least 32, at most 64"),
    ],
)
def test_a_limit_takes_what_it_says(limit: Limit, taken: list[Any], refused: list[Any], text: str) -> None:
    """Each limit takes its values and no others, and describes them."""
    assert [value for value in taken if not limit.accepts(value)] == []
    assert [value for value in refused if limit.accepts(value)] == []
    assert limit.describe() == text


def test_limits_are_compared_by_meaning() -> None:
    """Equal limits are equal and hash alike; a flag and a number are not the same."""
    assert OneOf(1, 2) == OneOf(1, 2)
    assert hash(OneOf(1, 2)) == hash(OneOf(1, 2))
    assert OneOf(1) != OneOf(True)
    assert OneOf(1) != OneOf(2)
    assert OneOf(1) != 1
    assert Anything() == ANYTHING
    assert repr(OneOf(64, "x")) == "OneOf(64, 'x')"


def test_a_multiple_of_nothing_is_refused() -> None:
    """A limit that would divide by zero later is refused when it is written."""
    with pytest.raises(ContractError, match=r"multiple_of=0\): must be at least 1"):
        Integers(multiple_of=0)


def test_a_variant_limits_every_field_of_the_request() -> None:
    """Every field but the kind can be limited, has a code, and stands in this file's table."""
    limited = {item.name for item in fields(AttentionVariant)}
    assert set(FIELD_NAMES) - limited == {"kind"}
    assert {ReasonCode(name).value for name in FIELD_NAMES} == set(FIELD_NAMES)
    assert set(FIELD_NAMES) - set(UNMENTIONED) == {"kind", "num_heads", "max_model_len", "qk_nope_head_dim"}


@pytest.mark.parametrize("name", UNMENTIONED)
def test_a_field_that_is_not_mentioned_is_not_supported(name: str) -> None:
    """A variant that says nothing about a field refuses every value that asks something, and nothing else."""
    changes, accepted = UNMENTIONED[name]
    config = AttentionConfig(**{**DENSE, **changes})
    assert OPEN.limit_reasons(config) == []
    (reason,) = without(name).limit_reasons(config)
    assert reason.code == name
    assert reason.requested == getattr(config, name)
    assert reason.accepted == accepted
    assert str(reason) == f"{name}={getattr(config, name)}; accepts {accepted}"


@pytest.mark.parametrize("name", [name for name in UNMENTIONED if name not in ("head_size", "dtype")])
def test_the_neutral_value_needs_no_mention(name: str) -> None:
    """The plain request passes a variant that mentions only size and dtype, and one that mentions all but one field."""
    config = AttentionConfig(**DENSE)
    assert PLAIN.limit_reasons(config) == []
    assert without(name).limit_reasons(config) == []


@pytest.mark.parametrize("name", ["kv_cache_dtype", "sliding_window", "soft_cap", "sinks", "alibi", "kv_sharing"])
def test_a_limit_on_an_option_does_not_ask_for_the_option(name: str) -> None:
    """A backend that declares which windows, caps or cache dtypes it takes also takes their absence."""
    variant = limited(name, OneOf("something else"))
    assert variant.limit_reasons(AttentionConfig(**DENSE)) == []
    changes, _ = UNMENTIONED[name]
    (reason,) = variant.limit_reasons(AttentionConfig(**DENSE, **changes))
    assert reason.accepted == "something else"


@pytest.mark.parametrize("name", ["v_head_size", "num_kv_heads", "block_size", "attention_type", "causal"])
def test_a_limit_on_anything_else_holds_always(name: str) -> None:
    """What every layer has is checked at its neutral value too."""
    (reason,) = limited(name, OneOf("something else")).limit_reasons(AttentionConfig(**DENSE))
    assert reason.code == name


def test_all_reasons_are_given_in_the_order_of_the_fields() -> None:
    """A refused config learns everything that stands in its way, always in the same order."""
    variant = replace(PLAIN, head_size=Integers(multiple_of=128), num_kv_heads=ANYTHING, group_size=Integers(maximum=4))
    assert messages(variant, CPU, num_kv_heads=1, sinks=True, block_size=16, sliding_window=8, alibi=True) == [
        "head_size=64; accepts a multiple of 128",
        "block_size=16; accepts no cache",
        "sliding_window=8; accepts none",
        "sinks=True; accepts False",
        "alibi=True; accepts False",
        "8 query heads per key/value head; accepts at most 4",
    ]


def test_the_group_size_is_refused_by_the_number_of_key_heads() -> None:
    """Too many query heads per key head is a reason against ``num_kv_heads``, with the quotient as the value."""
    variant = replace(PLAIN, num_kv_heads=ANYTHING, group_size=OneOf(1, 4))
    assert messages(variant, CPU, num_kv_heads=2) == []
    (reason,) = variant.limit_reasons(AttentionConfig(**DENSE, num_kv_heads=4))
    assert (reason.code, reason.requested, reason.accepted) == (ReasonCode.NUM_KV_HEADS, 2, "1 or 4")


HOPPER = replace(PLAIN, runtimes=("cuda",), capability_majors=(9,))
FLOOR = replace(PLAIN, runtimes=("cuda",), capability_floor=(8, 0))
DATACENTRE_BLACKWELL = replace(PLAIN, runtimes=("cuda",), architectures=("sm_100*", "sm_103*"))


@pytest.mark.parametrize(
    ("variant", "capability", "expected"),
    [
        (HOPPER, cuda("9.0"), []),
        (HOPPER, cuda("10.0"), ["capability 10.0; runs on 9.x"]),
        (HOPPER, cuda("12.0"), ["capability 12.0; runs on 9.x"]),
        (FLOOR, cuda("12.1"), []),
        (FLOOR, cuda("8.0"), []),
        (FLOOR, cuda("7.5"), ["capability 7.5; needs >= 8.0"]),
        (DATACENTRE_BLACKWELL, cuda("sm_100a"), []),
        (DATACENTRE_BLACKWELL, cuda("10.3"), []),
        (DATACENTRE_BLACKWELL, cuda("12.1"), ["architecture sm_121; runs on sm_100* or sm_103*"]),
        (FLOOR, None, ["capability unknown"]),
        (HOPPER, DeviceCapability(runtime="cuda", arch="unknown"), ["capability unknown; runs on 9.x"]),
        (FLOOR, DeviceCapability(runtime="cuda", arch="unknown"), ["capability unknown; needs >= 8.0"]),
        # Numbers of another runtime say nothing: the runtime is the one reason.
        (FLOOR, DeviceCapability(runtime="musa", arch="mp_31", major=3, minor=1), ["runtime musa; runs on cuda"]),
        (FLOOR, DeviceCapability(runtime="musa", arch="mp_99", major=9, minor=9), ["runtime musa; runs on cuda"]),
        (replace(HOPPER, runtimes=("cuda", "rocm")), CPU, ["runtime cpu; runs on cuda or rocm"]),
        (replace(PLAIN, architectures=("gfx942",)), DeviceCapability(runtime="rocm", arch="gfx942"), []),
        (
            replace(PLAIN, architectures=("gfx942",)),
            DeviceCapability(runtime="rocm", arch="gfx9420"),
            ["architecture gfx9420; runs on gfx942"],
        ),
        (replace(PLAIN, features=("bf16",)), CPU, []),
        (
            replace(PLAIN, features=("bf16", "avx10", "tma")),
            CPU,
            ["the device lacks avx10, tma"],
        ),
        (replace(PLAIN, features=("bf16",)), None, ["capability unknown"]),
        (replace(PLAIN, runtimes=("cpu",)), None, ["capability unknown"]),
        (replace(PLAIN, architectures=("gfx942",)), None, ["capability unknown"]),
        (HOPPER, None, ["capability unknown"]),
        (PLAIN, None, []),
        (PLAIN, CPU, []),
    ],
)
def test_the_guard_says_on_which_devices_a_variant_exists(
    variant: AttentionVariant, capability: DeviceCapability | None, expected: list[str]
) -> None:
    """Runtime, architecture, version and features are each checked, and what is unknown is said to be unknown."""
    assert messages(variant, capability) == expected
    for reason in variant.guard_reasons(capability):
        assert reason.code == ReasonCode.CAPABILITY
        assert reason.accepted


def test_guard_and_limits_are_told_together() -> None:
    """A config refused twice over learns of both, the device first."""
    assert messages(HOPPER, cuda("8.6"), sinks=True) == ["capability 8.6; runs on 9.x", "sinks=True; accepts False"]


def test_a_missing_package_is_a_reason_of_the_guard() -> None:
    """The requirement is handed to whoever knows the installed packages; its answer is the reason."""
    missing = Reason(code=ReasonCode.MISSING_DEPENDENCY, message="flash-attn is not installed")
    asked: list[str] = []

    def package_reason(requirement: str) -> Reason | None:
        asked.append(requirement)
        return missing if requirement.startswith("flash-attn") else None

    support = AttentionSupport((replace(PLAIN, package="flash-attn>=2.7"),))
    config = AttentionConfig(**DENSE)
    assert support.reasons(CPU, config, package_reason) == (missing,)
    assert support.reasons(CPU, config) == ()
    assert AttentionSupport((replace(PLAIN, package="torch>=2"),)).reasons(CPU, config, package_reason) == ()
    assert asked == ["flash-attn>=2.7", "torch>=2"]


@pytest.mark.parametrize(
    ("variants", "capability", "expected"),
    [
        # Nobody accepts: fewest limits, then the first.
        ([replace(PLAIN, head_size=OneOf(128), dtype=OneOf("int8")), replace(PLAIN, head_size=OneOf(32))], CPU, ["32"]),
        ([replace(PLAIN, head_size=OneOf(128)), replace(PLAIN, head_size=OneOf(32))], CPU, ["128"]),
        # A variant that exists here is nearer than one that does not, however little the latter minds.
        ([HOPPER, replace(PLAIN, head_size=OneOf(128), dtype=OneOf("int8"))], cuda("8.0"), ["128", "int8"]),
        # One of this runtime is nearer than one of another.
        ([HOPPER, replace(PLAIN, runtimes=("cpu",), features=("avx10",))], CPU, ["a device with avx10"]),
        (
            [HOPPER, replace(PLAIN, runtimes=("cpu",), features=("avx10",), architectures=("x",))],
            CPU,
            ["x", "a device with avx10"],
        ),
        # One that accepts settles it, wherever it stands.
        ([HOPPER, replace(PLAIN, head_size=OneOf(128)), PLAIN], CPU, []),
    ],
)
def test_the_nearest_variant_gives_the_reasons(
    variants: list[AttentionVariant], capability: DeviceCapability, expected: list[str]
) -> None:
    """Of several variants the one that was closest to accepting explains the refusal."""
    reasons = AttentionSupport(tuple(variants)).reasons(capability, AttentionConfig(**DENSE))
    assert [reason.accepted for reason in reasons] == expected


def test_reasons_do_not_mix_variants() -> None:
    """Two variants that each accept half of a config do not accept it together."""
    windows = replace(PLAIN, sliding_window=ANYTHING)
    sinks = replace(PLAIN, sinks=ANYTHING)
    reasons = AttentionSupport((windows, sinks)).reasons(CPU, AttentionConfig(**DENSE, sliding_window=8, sinks=True))
    assert [str(reason) for reason in reasons] == ["sinks=True; accepts False"]


def test_support_without_variants_breaks_the_contract() -> None:
    """An empty declaration is told apart from a refusal."""
    (reason,) = AttentionSupport(()).reasons(CPU, AttentionConfig(**DENSE))
    assert reason.code == ReasonCode.CONTRACT


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"runtimes": "cuda"}, r"AttentionVariant.runtimes='cuda': expected a tuple"),
        ({"architectures": "gfx942"}, r"AttentionVariant.architectures='gfx942': expected a tuple"),
        ({"features": "bf16"}, r"AttentionVariant.features='bf16': expected a tuple"),
        ({"capability_majors": 9}, r"AttentionVariant.capability_majors=9: expected a tuple"),
        ({"head_size": 64}, r"AttentionVariant.head_size=64: expected a limit such as OneOf"),
        ({"group_size": (1, 2)}, r"AttentionVariant.group_size=\(1, 2\): expected a limit such as OneOf"),
    ],
)
def test_a_declaration_of_the_wrong_type_breaks_the_contract(arguments: dict[str, Any], text: str) -> None:
    """A bare word would be searched letter by letter and a bare number never match: both are refused at once."""
    with pytest.raises(ContractError, match=text):
        AttentionVariant(**arguments)


@pytest.mark.parametrize("variants", [PLAIN, (OneOf(64),)])
def test_support_holds_variants_only(variants: Any) -> None:
    """A single variant without its tuple, or a limit in place of one, is refused at once."""
    with pytest.raises(ContractError, match=r"AttentionSupport.variants"):
        AttentionSupport(variants)


def test_lists_become_tuples() -> None:
    """A declaration written with lists is as hashable as one written with tuples."""
    listed = AttentionVariant(runtimes=["cpu"], features=["bf16"])  # type: ignore[arg-type]
    assert listed == AttentionVariant(runtimes=("cpu",), features=("bf16",))
    assert hash(AttentionSupport([listed])) == hash(AttentionSupport((listed,)))  # type: ignore[arg-type]


def test_support_is_frozen_data() -> None:
    """Declarations compare by value, hash, pickle and cannot be changed."""
    support = AttentionSupport((replace(HOPPER, head_size=Integers(multiple_of=8)), OPEN))
    assert pickle.loads(pickle.dumps(support)) == support
    assert hash(pickle.loads(pickle.dumps(support))) == hash(support)
    assert support != AttentionSupport((HOPPER, OPEN))
    assert pickle.loads(pickle.dumps(support)).reasons(CPU, AttentionConfig(**DENSE)) == ()
    with pytest.raises(FrozenInstanceError):
        support.variants = ()  # type: ignore[misc]


def test_a_vendors_own_limit_is_a_limit() -> None:
    """Anything with `accepts` and `describe` can stand in a variant, even if it cannot be hashed."""

    class PowersOfTwo:
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            return isinstance(other, PowersOfTwo)

        def accepts(self, value: object) -> bool:
            return isinstance(value, int) and value & (value - 1) == 0

        def describe(self) -> str:
            return "a power of two"

    variant = replace(PLAIN, head_size=PowersOfTwo())
    assert messages(variant, CPU) == []
    assert messages(variant, CPU, head_size=96) == ["head_size=96; accepts a power of two"]


def test_asking_keeps_no_config_alive() -> None:
    """Neither an accepted nor a refused question leaves a reference to anything that was asked with."""

    class Owner:
        """Stands for the engine that holds the config."""

        def __init__(self) -> None:
            self.config = AttentionConfig(**DENSE, sinks=True)
            self.support = AttentionSupport((PLAIN, OPEN))

        def package_reason(self, requirement: str) -> None:
            return None

    owner = Owner()
    gone = weakref.ref(owner)
    assert owner.support.reasons(CPU, owner.config, owner.package_reason) == ()
    assert len(AttentionSupport((PLAIN,)).reasons(CPU, owner.config, owner.package_reason)) == 1
    configs = sum(type(thing) is AttentionConfig for thing in gc.get_objects())
    del owner
    gc.collect()
    assert gone() is None
    assert sum(type(thing) is AttentionConfig for thing in gc.get_objects()) < configs
