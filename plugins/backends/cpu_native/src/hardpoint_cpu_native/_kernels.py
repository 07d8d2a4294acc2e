"""Which kernel module this process uses, and what such a module offers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

GROUP: Final = "cpu_native"


class NativeLayer(Protocol):
    """A layer's numbers, checked, as the module holds them."""


class NativeStep(Protocol):
    """A step's sequences, blocks and slots, checked and copied."""


class Kernels(Protocol):
    """What every module of the group exports. See ``native/module.cpp``."""

    instruction_set: str

    def layer(
        self,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_size: int,
        v_head_size: int,
        dtype: torch.dtype,
        cache_dtype: torch.dtype,
        latent: bool,
        scale: float,
        key_scale: float,
        value_scale: float,
        soft_cap: float,
        sinks: Sequence[float],
        slopes: Sequence[float],
        shares_cache: bool,
    ) -> NativeLayer:
        """Numbers of a layer; a soft cap of 0 is none. Errors: `ConfigError`."""
        ...

    def step(
        self,
        *,
        num_heads: int,
        num_kv_heads: int,
        block_size: int,
        bfloat: bool,
        causal: bool,
        window: int,
        query_starts: Sequence[int],
        seq_lens: Sequence[int],
        key_starts: Sequence[int],
        table: torch.Tensor | None,
        slots: torch.Tensor | None,
        threads: int,
    ) -> NativeStep:
        """A step; a window or block size of 0 is none. Errors: `ConfigError`, `IndexError`."""
        ...

    def write_kv_cache(
        self,
        layer: NativeLayer,
        step: NativeStep,
        key: torch.Tensor,
        value: torch.Tensor | None,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor | None,
        threads: int,
        /,
    ) -> None:
        """Store the step's new rows; a latent has no values. Errors: `ConfigError`, `IndexError` for a slot outside."""

    def attention(
        self,
        layer: NativeLayer,
        step: NativeStep,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor | None,
        cached: bool,  # noqa: FBT001  # a compiled function without keywords
        out: torch.Tensor,
        lse: torch.Tensor | None,
        threads: int,
        /,
    ) -> None:
        """Attend. Errors: `ConfigError`, `IndexError` for a block outside the cache."""

    def forward(
        self,
        layer: NativeLayer,
        step: NativeStep,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor | None,
        out: torch.Tensor,
        lse: torch.Tensor | None,
        threads: int,
        /,
    ) -> None:
        """Store the step's new rows, then attend; all is checked before anything is written. Errors: as those two."""

    def read(self, address: int, num_bytes: int, threads: int, /) -> float:
        """Read memory as fast as this machine can: what benchmarks compare decoding with."""
        ...


def thread_budget() -> int:
    """How many threads this process may compute with: its CPUs, under affinity and quota."""
    import hardpoint

    # Another platform's class answers for the host where the CPU platform's plugin is not the one in charge.
    return max(1, getattr(hardpoint.platform("cpu"), "usable_cpus", 0) or 1)


def imported() -> Kernels:
    """The module that the CPU platform imported; it does so now if nobody has asked it to.

    Errors: `hardpoint.errors.MissingOperatorError` where none could be imported.
    """
    import hardpoint

    operator = hardpoint.platform("cpu").get_operator(GROUP, "attention")
    return cast("Kernels", sys.modules[operator.__module__])
