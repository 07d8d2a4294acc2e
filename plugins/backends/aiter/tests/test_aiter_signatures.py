"""The fake package is the real one as far as its signatures go, and what the layers call binds to them."""

from __future__ import annotations

from pathlib import Path

from tests.kernel_signatures import Signatures


class TestSignatures(Signatures):
    """Those that are recorded beside this file."""

    folder = Path(__file__).parent
    fake = "fake_aiter.py"
