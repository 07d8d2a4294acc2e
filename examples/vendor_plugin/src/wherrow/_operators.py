"""Torch's operators on the device: each is queued in the current stream.

What an operator computes, the simulated processor leaves to torch's own CPU kernels, which work on the device's memory.
A vendor registers kernels of its own, and this as the fallback for the rest, if at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from wherrow._device import device
from wherrow._memory import KEY, TYPE, copy_, directly, empty, empty_strided, memory_of, new_tensor, resize_, seen, take
from wherrow._streams import current_stream

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch._ops import OpOverload


def run(operator: OpOverload, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401  # operators differ
    """Any operator that has no kernel of its own.

    One that writes into tensors that it is given is queued, and its caller goes on. One that makes its result is waited
    for: how large that is, nobody knows before.
    """
    schema = operator._schema  # noqa: SLF001  # what torch itself dispatches by
    infos = [item.alias_info for item in schema.returns]
    if schema.name == "aten::set_" or any(info is not None and not info.is_write for info in infos):
        # Which part of the memory a tensor is, and in what shape: the same everywhere.
        return directly(KEY.CPU, operator, *arguments, **named)
    mine = [item for item in _tensors((arguments, named)) if item.device.type == TYPE]
    if not mine:
        raise NotImplementedError(f"{operator} on {TYPE}: none of its arguments is there")
    where, stream = device(mine[0].device), current_stream(mine[0].device)
    if any(item.name == "generator" and item.kwarg_only for item in schema.arguments) and not named.get("generator"):
        named["generator"] = where.generator
    written = _written(schema, arguments, named)
    targets = list(_tensors(list(written.values())))
    # Into an empty one an operator puts as much as it makes.
    grown = {id(item): item.new_empty(item.shape, device="cpu") for item in targets if not item.numel()}
    given, by_name = _for_processor(schema, arguments, named, targets, grown)
    if None not in infos and not grown and all(item.device.type == TYPE for item in targets):
        stream.launch(lambda: operator(*given, **by_name), *memory_of(*mine))
        results = [written[_key(info)] for info in infos]
    else:
        made = stream.run(lambda: operator(*given, **by_name))
        for item in targets:
            if id(item) in grown:
                take(grown[id(item)], item.resize_(grown[id(item)].shape))
        results = [
            _moved(value, mine[0].device) if info is None else written[_key(info)]
            for info, value in zip(infos, [made] if len(infos) == 1 else made or (), strict=True)
        ]
    return results[0] if len(results) == 1 else tuple(results) or None


def _for_processor(
    schema: Any,  # noqa: ANN401  # torch's schemas are untyped
    arguments: Sequence[Any],
    named: Mapping[str, Any],
    targets: Sequence[torch.Tensor],
    grown: Mapping[int, torch.Tensor],
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments as the processor has them."""
    kept = set(map(id, targets))

    def one(value: Any) -> Any:  # noqa: ANN401  # an argument
        if isinstance(value, torch.Tensor):
            if value.device.type == TYPE or id(value) in kept:
                return grown.get(id(value), seen(value))
            if value.dim() and "index" not in schema.name:
                raise RuntimeError(f"{schema.name} on {TYPE} with a tensor on {value.device}")
            # The host may change its own before the stream comes to it.
            return value.clone()
        if isinstance(value, torch.device):
            return torch.device("cpu")
        return type(value)(map(one, value)) if isinstance(value, (list, tuple)) else value

    positional = [
        one(_as_tensor(value) if "Tensor" in str(item.type) else value)
        for value, item in zip(arguments, schema.arguments, strict=False)
    ]
    return positional, {name: one(value) for name, value in named.items()}


def _as_tensor(value: Any) -> Any:  # noqa: ANN401  # an argument
    """What an operator wants as a tensor: of a formula's numbers torch makes some, and hands them over as numbers."""
    if isinstance(value, float):
        return torch.tensor(value, dtype=torch.float64)
    return torch.tensor(value) if isinstance(value, int) else value


def _moved(value: Any, where: torch.device) -> Any:  # noqa: ANN401  # tensors, lists of them, numbers
    """What the processor made, as the device's."""
    if isinstance(value, torch.Tensor):
        return take(value, new_tensor(value.shape, value.stride(), value.dtype, where))
    return [_moved(item, where) for item in value] if isinstance(value, (list, tuple)) else value


def _key(info: Any) -> frozenset[str]:  # noqa: ANN401  # torch's schemas are untyped
    return frozenset(info.before_set)


def _written(schema: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> dict[frozenset[str], Any]:  # noqa: ANN401  # as above
    """The arguments that the operator writes into."""
    found = {}
    for position, argument in enumerate(schema.arguments):
        value = arguments[position] if position < len(arguments) else named.get(argument.name)
        if argument.alias_info is not None and argument.alias_info.is_write and value is not None:
            found[_key(argument.alias_info)] = value
    return found


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def register() -> tuple[torch.library.Library, ...]:
    """Put these into torch's tables, for as long as the result is held."""
    library: Any = torch.library.Library  # Any: its methods have no types
    aten, others = library("aten", "IMPL"), library("_", "IMPL")
    others.fallback(run, "PrivateUse1")
    own = {"empty.memory_format": empty, "empty_strided": empty_strided, "resize_": resize_, "copy_": copy_}
    for name, kernel in own.items():
        aten.impl(name, kernel, "PrivateUse1")
    return aten, others
