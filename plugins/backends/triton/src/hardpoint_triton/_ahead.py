"""Compiling a launch for a device that is not there: what tests and the tuning script ask of Triton."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch  # noqa: TID253  # imported only with a chosen backend
import triton  # noqa: TID253  # as torch
from triton.backends.compiler import GPUTarget  # noqa: TID253  # as torch
from triton.compiler import ASTSource  # noqa: TID253  # as torch

if TYPE_CHECKING:
    from hardpoint_triton._kernel import Launch

_POINTERS = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.float8_e4m3fnuz: "*fp8e4b8",
    torch.float8_e5m2: "*fp8e5",
    torch.float8_e5m2fnuz: "*fp8e5b16",
    torch.int32: "*i32",
    torch.int64: "*i64",
}


def target_of(arch: str) -> GPUTarget:
    """Triton's target for ``sm_90`` or ``gfx942``. AMD's wavefronts have 64 lanes on CDNA (gfx9) and 32 on RDNA."""
    if arch.startswith("sm_"):
        return GPUTarget("cuda", int(arch[3:].rstrip("af")), 32)
    return GPUTarget("hip", arch, 64 if arch.startswith("gfx9") else 32)


def compile_ahead(launch: Launch, arch: str) -> Any:  # noqa: ANN401  # Any: Triton has no types
    """What Triton compiles for such a launch, with the specialisations that a real one would have.

    Errors: whatever Triton raises. Its cache directory is used.
    """
    kernel = launch.kernel.compiled
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}  # Any: numbers and flags
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}  # Any: Triton's own form
    for number, parameter in enumerate(kernel.params):
        value = launch.arguments[parameter.name]
        if parameter.is_constexpr or (type(value) is int and value == 1 and not parameter.do_not_specialize):
            signature[parameter.name] = "constexpr"
            constants[parameter.name] = value
            continue
        if isinstance(value, torch.Tensor):
            signature[parameter.name] = _POINTERS[value.dtype]
            aligned = value.data_ptr() % 16 == 0
        elif isinstance(value, float):
            signature[parameter.name] = "fp32"
            aligned = False
        else:
            signature[parameter.name] = "i32" if -(1 << 31) <= value < 1 << 31 else "i64"
            aligned = value % 16 == 0 and not parameter.do_not_specialize
        if aligned:
            attributes[number,] = [["tt.divisibility", 16]]
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages, "enable_fp_fusion": True}
    source = ASTSource(kernel, signature, constants, attributes)
    return triton.compile(source, target=target_of(arch), options=options)
