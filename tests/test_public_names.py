"""The public face: its names, and that importing it loads nothing."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import hardpoint

if TYPE_CHECKING:
    from tests.plugins import Site

PUBLIC = [
    "API_VERSION",
    "AttentionBackend",
    "AttentionBatch",
    "AttentionConfig",
    "AttentionLayer",
    "AttentionSupport",
    "AttentionVariant",
    "BackendPriority",
    "BackendSpec",
    "Candidate",
    "Depth",
    "Detection",
    "Device",
    "DeviceCapability",
    "EnvironmentFailure",
    "Fingerprint",
    "HardpointError",
    "InMemoryMachine",
    "KernelModule",
    "KernelReport",
    "LiveMachine",
    "Machine",
    "Order",
    "Outcome",
    "Phase",
    "Platform",
    "PlatformSpec",
    "Profile",
    "Provenance",
    "Rank",
    "Reason",
    "ReasonCode",
    "Recomputation",
    "Report",
    "Resolution",
    "Selection",
    "Setting",
    "Snapshot",
    "StartMethod",
    "__version__",
    "agreement",
    "attention",
    "current_platform",
    "errors",
    "fingerprint",
    "hookimpl",
    "hookspecs",
    "inspect",
    "list_profiles",
    "load_library",
    "log_once",
    "normalise_gfx",
    "override_platform",
    "parse_compute_capability",
    "platform",
    "platforms",
    "read_snapshot",
    "register",
    "report",
    "reset",
    "resolve",
    "simulate",
    "snapshot",
]

HEAVY = (
    "torch",
    "numpy",
    "pluggy",
    "importlib.metadata",
    "importlib_metadata",
    "packaging",
    "json",
    "subprocess",
    "logging",
)


def loaded_by(code: str, *names: str) -> list[str]:
    """Which of these modules a fresh interpreter has loaded after the code."""
    program = (
        f"import sys\n{code}\nfound = [n for n in {names!r} if n in sys.modules]\nimport json; print(json.dumps(found))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, check=True, timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert done.stderr == ""
    found: list[str] = json.loads(done.stdout)
    return found


def test_the_public_names_are_these() -> None:
    """A name that comes or goes is a decision."""
    assert sorted(hardpoint.__all__) == sorted(PUBLIC)
    for name in PUBLIC:
        assert getattr(hardpoint, name) is not None
    assert set(PUBLIC) <= set(dir(hardpoint))
    with pytest.raises(AttributeError, match="has no attribute 'cuda'"):
        _ = hardpoint.cuda


def test_importing_hardpoint_loads_nothing() -> None:
    """No torch, numpy, pluggy, metadata reader, logging or plugin; nothing printed, no variable set."""
    before = "import os; before = dict(os.environ)"
    after = "assert dict(os.environ) == before"
    assert loaded_by(f"{before}\nimport hardpoint\n{after}", *HEAVY, "hardpoint_cpu", "hardpoint_torch_sdpa") == []


def test_resolution_and_static_selection_load_no_torch(site: Site) -> None:
    """Neither torch nor numpy; the resolution alone no json, packaging, subprocess or metadata reader either."""
    site.platform("fake")
    package = site.backend("one")
    resolve = "import hardpoint\nplatform = hardpoint.current_platform()"
    late = ("torch", "numpy", "importlib_metadata", "importlib.metadata", "packaging", "json", "subprocess")
    assert loaded_by(resolve, *late, f"{package}.plugin") == []
    select = (
        "\nplatform.select_backend("
        "hardpoint.AttentionConfig(head_size=64, num_heads=2, dtype='float32'), depth='static')"
    )
    assert loaded_by(resolve + select, "torch", "numpy", f"{package}.implementation") == []


def test_logging_is_left_alone(site: Site) -> None:
    """B15: the application's loggers and the root are as they were; ours has a NullHandler only."""
    application = logging.getLogger("application")
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    site.platform("fake")
    hardpoint.resolve()
    assert not application.disabled
    assert (root.handlers, root.level) == (handlers, level)
    ours = logging.getLogger("hardpoint")
    assert [type(handler) for handler in ours.handlers] == [logging.NullHandler]
    assert ours.level == logging.NOTSET
    assert ours.propagate
