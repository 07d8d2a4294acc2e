"""FlashAttention's three packages, faked, and a device of any capability for them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kernel_library import Library, libraries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

HERE = Path(__file__).parent
SIGNATURES = {"fa2": "flash_attn", "fa3": "flash_attn_3", "fa4": "flash_attn_4"}


@pytest.fixture
def flash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[Library]]]:
    """A factory: installed generations, the compute capability of the one device. A further call replaces them."""
    torch = pytest.importorskip("torch")
    running: list[AbstractContextManager[list[Library]]] = []
    numbers = itertools.count()

    def install(*generations: str, capability: tuple[int, int] = (9, 0)) -> list[Library]:
        site = tmp_path / f"site{next(numbers)}"
        site.mkdir()
        if running:
            running.pop().__exit__(None, None, None)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
        kernels = HERE / "fake_flash_attn.py"
        context = libraries(site, *((HERE / "signatures" / f"{SIGNATURES[g]}.json", kernels) for g in generations))
        running.append(context)
        return context.__enter__()

    yield install
    if running:
        running.pop().__exit__(None, None, None)
