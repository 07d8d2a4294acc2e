"""A kernel's source, compiled for a GPU or run in Triton's interpreter: whichever Triton is set to."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import triton  # noqa: TID253  # imported only with a chosen backend
from triton.runtime.jit import JITFunction  # noqa: TID253  # as triton

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


# The interpreter keeps the program's place in its grid, and Triton's language as patched for it, in globals.
_interpreter = threading.Lock()


def interpreting() -> bool:
    """Whether Triton interprets kernels instead of compiling them (its own ``TRITON_INTERPRET=1``)."""
    return bool(triton.knobs.runtime.interpret)


class Kernel:
    """One kernel. `triton.jit` decides at import which of the two it makes; here the first launch does."""

    def __init__(self, source: Callable[..., None], *, do_not_specialize: tuple[str, ...] = ()) -> None:
        self.source = source
        self.name = source.__name__.strip("_")
        self._do_not_specialize = do_not_specialize

    @cached_property
    def compiled(self) -> Any:  # noqa: ANN401  # Any: Triton has no types
        """What Triton compiles."""
        return JITFunction(self.source, do_not_specialize=list(self._do_not_specialize))

    @cached_property
    def interpreted(self) -> Any:  # noqa: ANN401  # Any: as above
        """What Triton interprets. Needs numpy."""
        from triton.runtime.interpreter import InterpretedFunction

        return InterpretedFunction(self.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A kernel with everything that it is called with: to run, or to compile for another machine.

    `arguments` are tensors, numbers and constants in the kernel's own names.
    """

    kernel: Kernel
    grid: tuple[int, int, int]
    arguments: Mapping[str, Any]  # Any: Triton's arguments have no common type
    num_warps: int
    num_stages: int

    def run(self, *, interpreted: bool) -> None:
        """Launch it on the current stream. An empty grid is no launch: drivers refuse one."""
        if not all(self.grid):
            return
        if interpreted:
            with _interpreter:
                self.kernel.interpreted[self.grid](**self.arguments)
            return
        self.kernel.compiled[self.grid](
            **self.arguments, num_warps=self.num_warps, num_stages=self.num_stages, enable_fp_fusion=True
        )
