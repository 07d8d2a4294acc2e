"""Which generation of FlashAttention serves a config on a device, by the same data that declared the support."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch  # noqa: TID253  # imported only with a chosen backend

from hardpoint import DeviceCapability, LiveMachine, log_once, normalise_gfx
from hardpoint._probing import describe_error
from hardpoint._requirements import requirement_reason
from hardpoint._settings import read_settings
from hardpoint.attention._kernel_library import load_function
from hardpoint.errors import EnvironmentFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hardpoint.attention import AttentionConfig, AttentionVariant

_log = logging.getLogger("hardpoint")

_PACKED: Final = (
    *("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "softmax_scale", "causal", "window_size"),
    "softcap",
)
_FA3: Final = (
    "softmax_scale",
    "causal",
    "window_size",
    "softcap",
    "cu_seqlens_q",
    "max_seqlen_q",
    "num_splits",
    "pack_gqa",
)
_FA3_PAGED: Final = ("flash_attn_with_kvcache", (*_FA3, "cache_seqlens", "page_table", "return_softmax_lse", "qv"))
_FA4: Final = (
    "flash_attn_varlen_func",
    (*_PACKED, "seqused_k", "page_table", "learnable_sink", "return_lse", "qv"),
)
MODULES: Final = {"fa2": "flash_attn", "fa3": "flash_attn_interface", "fa4": "flash_attn.cute"}
CALLS: Final = {
    "fa2": (("flash_attn_varlen_func", (*_PACKED, "alibi_slopes", "return_attn_probs", "block_table")),),
    "fa3": (("flash_attn_varlen_func", (*_FA3, "cu_seqlens_k", "max_seqlen_k")), _FA3_PAGED),
    "fa4": (_FA4,),
}
"""The functions of each generation that are called here, with the arguments that they must take."""


@dataclass(frozen=True, slots=True)
class Library:
    """One generation, imported. Its functions differ from one another in name, arguments and results."""

    generation: str
    functions: Mapping[str, Callable[..., Any]]  # Any: none of the three is typed


def find(
    generations: Mapping[str, tuple[AttentionVariant, ...]],
    capability: DeviceCapability | None,
    config: AttentionConfig,
) -> list[str]:
    """The generations that declare support, with their packages here: 4 first on 10.x and 11.x, else 3; the best first.

    On 9.x 4 stands behind 3, which splits long keys for few queries and gives equal bits in every batch.
    """
    # Asked anew each time: what is installed may change until the first layer is built.
    package_reason = partial(requirement_reason, machine=LiveMachine())
    major = None if capability is None or capability.version is None else capability.version[0]
    return [
        generation
        for generation in (("fa4", "fa3", "fa2") if major in (10, 11) else ("fa3", "fa4", "fa2"))
        if any(
            not variant.guard_reasons(capability, package_reason) and not variant.refused_fields(config)
            for variant in generations.get(generation, ())
        )
    ]


def load_best(
    generations: Mapping[str, tuple[AttentionVariant, ...]],
    capability: DeviceCapability | None,
    config: AttentionConfig,
) -> Library | None:
    """The best generation that can be imported; None where none declares support.

    One that cannot is told in a WARNING, with what is used instead; with ``HARDPOINT_STRICT`` it is the error. Errors:
    where none can be imported, the best one's, which tells of the others too.
    """
    failures: list[tuple[str, ImportError | OSError]] = []
    strict = read_settings(LiveMachine()).strict
    for generation in find(generations, capability, config):
        try:
            library = load(generation)
        except (ImportError, OSError) as error:
            failures.append((generation, error))
            if strict:
                break
        else:
            for lost, failure in failures:
                log_once(
                    _log, logging.WARNING, "FlashAttention %s cannot be imported: %s; using FlashAttention %s instead",
                    lost[-1], describe_error(failure), generation[-1],
                )  # fmt: skip
            return library
    if not failures:
        return None
    (_, first), *others = failures
    for lost, failure in others:
        first.add_note(f"FlashAttention {lost[-1]} cannot be imported either: {describe_error(failure)}")
    raise first


def load(generation: str) -> Library:
    """Import it. Errors: those of `load_function`."""
    module = MODULES[generation]
    return Library(generation, {name: load_function(module, name, takes) for name, takes in CALLS[generation]})


def capability_of(device: torch.device | str) -> DeviceCapability:
    """The device's capability, as torch says. Errors: `EnvironmentFailure` where it has no such device."""
    try:
        if torch.version.hip is not None:
            arch, features = normalise_gfx(torch.cuda.get_device_properties(torch.device(device)).gcnArchName)
            return DeviceCapability(runtime="rocm", arch=arch, features=features)
        return DeviceCapability.parse(torch.cuda.get_device_capability(torch.device(device)), runtime="cuda")
    except (RuntimeError, AssertionError, ValueError) as error:
        raise EnvironmentFailure(f"torch has no GPU {device}: {error}", code="no_device") from error
