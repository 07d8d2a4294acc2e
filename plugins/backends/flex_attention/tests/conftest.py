"""Compilations are dear: what the tests compile is kept apart from the user's, and few families are used by many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def base() -> dict[str, Any]:
    """The config whose two families the quick tests share."""
    return {"head_size": 16, "num_heads": 4, "num_kv_heads": 2, "block_size": 16, "dtype": "float32"}


@pytest.fixture
def no_recompilation() -> Iterator[None]:
    """A step that would compile anew fails. Prepare before."""
    import torch

    with torch.compiler.set_stance("fail_on_recompile"):
        yield
