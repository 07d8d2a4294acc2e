"""What goes into the engine and comes out of it. Plain data, so that it can cross to another process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What a user may choose. None leaves the choice: to Hardpoint, or to the weights."""

    model: str | None = None
    platform: str | None = None
    backend: tuple[str, ...] | None = None
    """Names in order of preference; a last ``auto`` opens the automatic order."""
    dtype: str | None = None
    block_size: int = 16
    num_blocks: int | None = None
    max_model_len: int | None = None
    max_step_tokens: int = 512
    max_running: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt. `chat`: it is a user's message; else the model continues it as it stands."""

    text: str
    max_tokens: int = 64
    temperature: float = 0.0
    seed: int = 0
    chat: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A piece of a prompt's answer. The last has a `finish_reason`; `error` says why a prompt was refused."""

    prompt: int
    text: str = ""
    finish_reason: str | None = None
    error: str | None = None
    num_tokens: int = 0
    """Tokens that this event adds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What the engine runs on."""

    platform: str
    device: str
    backend: str
    why: str
    dtype: str
