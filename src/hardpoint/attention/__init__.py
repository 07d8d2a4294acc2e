"""Attention: what an engine asks, what a backend declares, how it is run, and what the right answer is.

Asking is `AttentionConfig`, declaring `AttentionSupport`, running `AttentionBackend`, `AttentionLayer` and
`AttentionBatch`; `reference_attention` defines the right answer in float64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

_HOME = {
    "AttentionConfig": "_config",
    "AttentionType": "_config",
    "DTYPE_SIZE_BYTES": "_config",
    "normalise_dtype": "_config",
    "ANYTHING": "_limits",
    "Anything": "_limits",
    "AttentionSupport": "_support",
    "AttentionVariant": "_support",
    "Integers": "_limits",
    "Limit": "_limits",
    "OneOf": "_limits",
    "AttentionBackend": "_contract",
    "AttentionLayer": "_contract",
    "AttentionPlan": "_contract",
    "CacheTensorSpec": "_contract",
    "GraphSupport": "_contract",
    "KVCacheSpec": "_contract",
    "AttentionBatch": "_batch",
    "merge_attention": "_merge",
    "reference_attention": "_reference",
    "write_kv_cache": "_reference_cache",
}
__all__ = [
    "ANYTHING",
    "DTYPE_SIZE_BYTES",
    "Anything",
    "AttentionBackend",
    "AttentionBatch",
    "AttentionConfig",
    "AttentionLayer",
    "AttentionPlan",
    "AttentionSupport",
    "AttentionType",
    "AttentionVariant",
    "CacheTensorSpec",
    "GraphSupport",
    "Integers",
    "KVCacheSpec",
    "Limit",
    "OneOf",
    "merge_attention",
    "normalise_dtype",
    "reference_attention",
    "write_kv_cache",
]


def __getattr__(name: str) -> object:
    if name in _HOME:
        from importlib import import_module

        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


if TYPE_CHECKING:
    from hardpoint.attention._batch import AttentionBatch as AttentionBatch
    from hardpoint.attention._config import DTYPE_SIZE_BYTES as DTYPE_SIZE_BYTES
    from hardpoint.attention._config import AttentionConfig as AttentionConfig
    from hardpoint.attention._config import AttentionType as AttentionType
    from hardpoint.attention._config import normalise_dtype as normalise_dtype
    from hardpoint.attention._contract import AttentionBackend as AttentionBackend
    from hardpoint.attention._contract import AttentionLayer as AttentionLayer
    from hardpoint.attention._contract import AttentionPlan as AttentionPlan
    from hardpoint.attention._contract import CacheTensorSpec as CacheTensorSpec
    from hardpoint.attention._contract import GraphSupport as GraphSupport
    from hardpoint.attention._contract import KVCacheSpec as KVCacheSpec
    from hardpoint.attention._limits import ANYTHING as ANYTHING
    from hardpoint.attention._limits import Anything as Anything
    from hardpoint.attention._limits import Integers as Integers
    from hardpoint.attention._limits import Limit as Limit
    from hardpoint.attention._limits import OneOf as OneOf
    from hardpoint.attention._merge import merge_attention as merge_attention
    from hardpoint.attention._reference import reference_attention as reference_attention
    from hardpoint.attention._reference_cache import write_kv_cache as write_kv_cache
    from hardpoint.attention._support import AttentionSupport as AttentionSupport
    from hardpoint.attention._support import AttentionVariant as AttentionVariant
