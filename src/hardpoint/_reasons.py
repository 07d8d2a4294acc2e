"""Why a candidate was not taken, as data: strings and numbers only, so that a record never keeps anything alive."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

Scalar = str | int | float | bool | None
"""What a record may hold."""


_TEXT = frozenset((str, type(None)))
_PLAIN = frozenset((str, int, bool, type(None)))


def plain_text(value: object) -> str:
    """The value's text and nothing else of it; of one whose text cannot be made, its type."""
    try:
        text = value if isinstance(value, str) else str(value)
        return str.__str__(text)
    except Exception as error:  # noqa: BLE001
        # A plugin's object: even its text may fail.
        return f"<{type(value).__name__} that raises {type(error).__name__} when printed>"


def own_words(message: str, whose: str) -> str:
    """What a message says after the plugin that it begins with, for a reader who has just been told which that is."""
    if message.startswith((f"{whose}: ", f"{whose} is ")):
        return message[len(whose) :].removeprefix(":").lstrip()
    return message


def _plain(value: object) -> Scalar | tuple[Scalar, ...]:
    if isinstance(value, (tuple, list, set, frozenset)):
        return tuple(plain_scalar(item) for item in value)
    return plain_scalar(value)


def plain_scalar(value: object) -> Scalar:
    """The value as JSON has it; anything else as its text."""
    if type(value) in _PLAIN:
        return value  # type: ignore[return-value]  # one of these
    if isinstance(value, int):
        return int(value)
    # JSON has neither infinity nor NaN.
    if isinstance(value, float) and value - value == 0.0:
        return float(value)
    return plain_text(value)


class ReasonCode(StrEnum):
    """Stable codes; they stand in the JSON. The second half is one per field of a request."""

    NOT_INSTALLED = "not_installed"
    MISSING_DEPENDENCY = "missing_dependency"
    INCOMPATIBLE_DEPENDENCY = "incompatible_dependency"
    BROKEN_IMPORT = "broken_import"
    CIRCULAR_IMPORT = "circular_import"
    MISSING_LIBRARY = "missing_library"
    PERMISSION = "permission"
    DRIVER = "driver"
    STUB_LIBRARY = "stub_library"
    NO_DEVICE = "no_device"
    MASKED = "masked"
    OTHER_BUILD = "other_build"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    INCOMPATIBLE_API = "incompatible_api"
    CONTRACT = "contract"
    UNTRUSTED = "untrusted"
    BLOCKED = "blocked"
    DUPLICATE = "duplicate"
    DECLINED = "declined"
    CAPABILITY = "capability"
    KERNEL_ARCH = "kernel_arch"
    KERNEL_MISSING = "kernel_missing"
    COMPILER = "compiler"
    OTHER = "other"

    KIND = "kind"
    HEAD_SIZE = "head_size"
    V_HEAD_SIZE = "v_head_size"
    NUM_HEADS = "num_heads"
    NUM_KV_HEADS = "num_kv_heads"
    DTYPE = "dtype"
    KV_CACHE_DTYPE = "kv_cache_dtype"
    BLOCK_SIZE = "block_size"
    ATTENTION_TYPE = "attention_type"
    CAUSAL = "causal"
    SLIDING_WINDOW = "sliding_window"
    SINKS = "sinks"
    ALIBI = "alibi"
    SOFT_CAP = "soft_cap"
    KV_SHARING = "kv_sharing"
    BATCH_INVARIANT = "batch_invariant"
    MAX_MODEL_LEN = "max_model_len"
    KV_LORA_RANK = "kv_lora_rank"
    QK_ROPE_HEAD_DIM = "qk_rope_head_dim"
    QK_NOPE_HEAD_DIM = "qk_nope_head_dim"


class Phase(StrEnum):
    """Where something happened."""

    DISCOVER = "discover"
    LOAD = "load"
    DETECT = "detect"
    ACTIVATE = "activate"
    IMPORT_KERNELS = "import kernels"
    SUPPORT = "declared support"
    IMPORT = "import"
    VALIDATE = "validate_configuration"
    PREPARE = "prepare"
    REPORT = "report"


class Outcome(StrEnum):
    """What became of a candidate."""

    CHOSEN = "chosen"
    VALID = "valid"
    """It would do; another one of higher priority was chosen."""
    REJECTED = "rejected"
    """It works here, and cannot do what was asked."""
    FAILED = "failed"
    """An environment failure."""
    CONTRACT = "contract"
    """The plugin breaks the contract."""
    BUG = "bug"
    """A programming error, met while inspecting."""
    ABSENT = "absent"
    """No such hardware."""
    UNUSABLE = "unusable"
    """Hardware seen, and it cannot be used."""
    DECLINED = "declined"
    BLOCKED = "blocked"
    UNTRUSTED = "untrusted"
    NOT_INSTALLED = "not_installed"
    NOT_TRIED = "not_tried"
    """The decision had been made before its turn came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One reason. `str(reason)` is the sentence; the rest is for programs.

    `requested` is the offending value, `accepted` says what would be taken, `remedy` what to type next, and
    `detail` holds a formatted traceback for debugging (text, never a live one).
    """

    code: ReasonCode
    message: str
    requested: Scalar | tuple[Scalar, ...] = None
    accepted: str | None = None
    remedy: str | None = None
    device: int | None = None
    detail: str | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        # Plugins may write the code's text; an unknown one is their bug.
        if type(self.code) is not ReasonCode:
            object.__setattr__(self, "code", ReasonCode(self.code))
        # A plugin may hand over a torch dtype, or a text with a life of its own.
        if type(self.requested) not in _PLAIN:
            object.__setattr__(self, "requested", _plain(self.requested))
        if type(self.message) is not str or not {type(self.accepted), type(self.remedy), type(self.detail)} <= _TEXT:
            for name in ("message", "accepted", "remedy", "detail"):
                value: object = getattr(self, name)
                if name == "message" or value is not None:
                    object.__setattr__(self, name, plain_text(value))

    def __str__(self) -> str:
        return self.message

    def on_device(self, index: int, described: str) -> Reason:
        """The same reason, told of one device among several: the text gets ``device 0 (8.6): `` in front."""
        return replace(self, device=index, message=f"device {index} ({described}): {self.message}")

    def as_dict(self) -> dict[str, Any]:  # Any: JSON
        """The JSON form; fields that say nothing are left out."""
        data: dict[str, Any] = {"code": str(self.code), "message": self.message}
        for name in ("requested", "accepted", "remedy", "device", "detail"):
            value = getattr(self, name)
            if value is not None:
                data[name] = list(value) if isinstance(value, tuple) else value
        return data


class Provenance(NamedTuple):
    """Where a plugin comes from. Unknown parts are None; `plugin` is ``platform/NAME`` or ``backend/NAME``."""

    plugin: str
    distribution: str | None = None
    version: str | None = None
    target: str | None = None
    file: str | None = None

    def __str__(self) -> str:
        if self.distribution is None:
            return f"{self.plugin} (unknown distribution)"
        return f"{self.plugin} ({self.distribution} {self.version or 'of unknown version'})"

    def as_dict(self) -> dict[str, Any]:  # Any: JSON
        return {
            "plugin": self.plugin,
            "distribution": self.distribution,
            "version": self.version,
            "target": self.target,
            "file": self.file,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A platform or backend that was considered.

    `rank_reason` says why it stands where it stands in the order; `phase` how far it came.
    """

    name: str
    outcome: Outcome
    reasons: tuple[Reason, ...] = ()
    provenance: Provenance | None = None
    phase: Phase | None = None
    rank_reason: str | None = None
    seconds: float | None = field(default=None, compare=False)

    def describe(self, *, whose: bool = True) -> str:
        """One line: ``name: reason; reason``, with an import or other failure told apart from a refusal.

        Without `whose` the reasons do not begin with the plugin: whoever writes the line names it.
        """
        label = {
            Outcome.FAILED: f"failed at {self.phase}: " if self.phase else "failed: ",
            Outcome.CONTRACT: "breaks the plugin contract: ",
            Outcome.BUG: "BUG: ",
            Outcome.REJECTED: "rejected: ",
            Outcome.UNUSABLE: "unusable: ",
            Outcome.ABSENT: "absent: ",
        }.get(self.outcome, f"{self.outcome.replace('_', ' ')}: ")
        label_of = None if whose else str(self.provenance)
        reasons = "; ".join(
            reason.message if label_of is None else own_words(reason.message, label_of) for reason in self.reasons
        )
        return f"{self.name}: {label}{reasons}" if reasons else f"{self.name}: {label[:-2]}"

    def as_dict(self) -> dict[str, Any]:  # Any: JSON
        return {
            "name": self.name,
            "outcome": str(self.outcome),
            "phase": None if self.phase is None else str(self.phase),
            "reasons": [reason.as_dict() for reason in self.reasons],
            "provenance": None if self.provenance is None else self.provenance.as_dict(),
            "rank_reason": self.rank_reason,
            "seconds": self.seconds,
        }
