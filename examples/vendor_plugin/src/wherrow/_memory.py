"""Tensors of the device: made, resized, copied; and how the simulated processor sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from wherrow._device import device as open_device
from wherrow._streams import current_stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch._ops import OpOverload

TYPE = "wherrow"
KEY = torch._C.DispatchKey  # noqa: SLF001  # torch's own name for it
_aten = torch.ops.aten


def directly(key: torch._C.DispatchKey, operator: OpOverload, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401  # operators differ
    """Torch's own kernel of another key: one that looks at what a tensor is, and never at its memory."""
    name = operator.name()  # type: ignore[no-untyped-call]
    if not torch._C._dispatch_has_kernel_for_dispatch_key(name, key.name):  # noqa: SLF001  # as below
        raise NotImplementedError(f"{operator} on {TYPE}: torch has no kernel for it that could be shared")
    return operator._op_dk(key, *arguments, **named)  # noqa: SLF001  # torch has no public way


def new_tensor(
    size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, where: torch.device | None
) -> torch.Tensor:
    """An uninitialised tensor of the device."""
    last = 0 if 0 in size else 1 + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    raw = open_device(where).allocate(last * dtype.itemsize)
    # Past autograd, to which it would be a view of a tensor of bytes.
    typed = directly(KEY.CompositeExplicitAutograd, _aten.view.dtype, raw, dtype)
    tensor: torch.Tensor = directly(KEY.CPU, _aten.as_strided.default, typed, size, stride, 0)
    return tensor


def empty(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    memory_format: torch.memory_format | None = None,
    **_: object,
) -> torch.Tensor:
    """``aten::empty.memory_format``. Of layouts and pinned memory there is one kind."""
    form = torch.contiguous_format if memory_format is None else memory_format
    like = torch.empty(size, dtype=dtype, device="meta", memory_format=form)
    return new_tensor(like.shape, like.stride(), like.dtype, device)


def empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    **_: object,
) -> torch.Tensor:
    """``aten::empty_strided``."""
    return new_tensor(size, stride, dtype or torch.get_default_dtype(), device)


def resize_(tensor: torch.Tensor, size: Sequence[int], **_: object) -> torch.Tensor:
    """``aten::resize_``: other memory where the old is too small; what was there comes along."""
    like = torch.empty(size, device="meta")
    storage, offset = tensor.untyped_storage(), int(tensor.storage_offset())
    needed = int(like.numel() + offset) * tensor.dtype.itemsize
    if needed > storage.nbytes():
        larger = new_tensor((needed,), (1,), torch.uint8, tensor.device)
        old = _of_storage(new_tensor((0,), (1,), torch.uint8, tensor.device), storage, 0, (storage.nbytes(),), (1,))
        larger[: len(old)].copy_(old)
        storage = larger.untyped_storage()
    return _of_storage(tensor, storage, offset, like.shape, like.stride())


def _of_storage(
    tensor: torch.Tensor, storage: torch.UntypedStorage, offset: int, size: Sequence[int], stride: Sequence[int]
) -> torch.Tensor:
    operator = _aten.set_.source_Storage_storage_offset
    result: torch.Tensor = directly(KEY.CPU, operator, tensor, storage, offset, size, stride)
    return result


def copy_(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:  # noqa: FBT001, FBT002  # torch's signature
    """``aten::copy_``, to the device, from it, or on it. With the host on one side it waits, unless it need not."""
    sides = [item for item in (target, source) if item.device.type == TYPE]
    stream = current_stream(sides[0].device)
    other = current_stream(sides[-1].device)
    there, here = seen(target), seen(source)
    if other is not stream:
        stream.wait_stream(other)
    stream.launch(lambda: there.copy_(here), *memory_of(target, source))
    if other is not stream:
        # What comes next there may overwrite the source.
        other.wait_stream(stream)
    if len(sides) == 1 and not non_blocking:
        stream.synchronize()
    return target


def seen(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as the simulated processor has it: its own sight of the device's memory; a host's tensor is itself."""
    return open_device(tensor.device).processors_view(tensor) if tensor.device.type == TYPE else tensor


def memory_of(*tensors: torch.Tensor) -> list[torch.UntypedStorage]:
    """What queued work has to hold. Not the tensors: they may be given other memory meanwhile."""
    return [item.untyped_storage() for item in tensors]


def take(result: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Put what the processor made into a tensor of the device. Queued: other work on its memory may stand before it."""
    there = seen(target)
    current_stream(target.device).launch(lambda: there.copy_(result), *memory_of(target))
    return target
