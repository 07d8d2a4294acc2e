"""Hardpoint: the layer between an inference engine and an accelerator.

It finds out which platform this process runs on, imports that platform's kernels, picks for every attention layer the
best backend that really works here, and can say why each of the others was not picked. ::

    import hardpoint

    platform = hardpoint.current_platform()
    platform.import_kernels()
    config = hardpoint.AttentionConfig(head_size=64, num_heads=9, num_kv_heads=3, dtype="bfloat16")
    selection = platform.select_backend(config)
    print(selection.explain())

Importing this package imports nothing else: every name is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

_HOME = {
    "API_VERSION": "hookspecs",
    "AttentionBackend": "attention",
    "AttentionBatch": "attention",
    "AttentionConfig": "attention",
    "AttentionLayer": "attention",
    "AttentionSupport": "attention",
    "AttentionVariant": "attention",
    "BackendPriority": "platforms",
    "BackendSpec": "_backend_spec",
    "Candidate": "_reasons",
    "Depth": "_evaluation",
    "Detection": "hookspecs",
    "Device": "hookspecs",
    "DeviceCapability": "_capability",
    "EnvironmentFailure": "errors",
    "Fingerprint": "_fingerprint",
    "HardpointError": "errors",
    "InMemoryMachine": "_machine_memory",
    "KernelModule": "_kernels",
    "KernelReport": "_kernels",
    "LiveMachine": "_machine_live",
    "Machine": "_machine",
    "Order": "_backend_spec",
    "Outcome": "_reasons",
    "Phase": "_reasons",
    "Platform": "platforms",
    "PlatformSpec": "hookspecs",
    "Profile": "_profiles",
    "Provenance": "_reasons",
    "Rank": "hookspecs",
    "Reason": "_reasons",
    "ReasonCode": "_reasons",
    "Recomputation": "_recomputation",
    "Report": "_report",
    "Resolution": "_resolution",
    "Selection": "_selection",
    "Setting": "hookspecs",
    "Snapshot": "_snapshot",
    "StartMethod": "_start_method",
    "current_platform": "_process",
    "fingerprint": "_report",
    "hookimpl": "hookspecs",
    "inspect": "_inspection",
    "list_profiles": "_profiles",
    "load_library": "_shared_object",
    "log_once": "_log",
    "normalise_gfx": "_capability_names",
    "override_platform": "_process",
    "parse_compute_capability": "_capability_names",
    "platform": "_process",
    "read_snapshot": "_snapshot",
    "register": "_process",
    "report": "_report",
    "reset": "_process",
    "resolve": "_process",
    "simulate": "_simulation",
    "snapshot": "_snapshot",
}
_MODULES = ("agreement", "attention", "errors", "hookspecs", "platforms")
__all__ = [*sorted(_HOME), *_MODULES, "__version__"]  # noqa: PLE0604  # strings all of them; a test pins them


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _HOME:
        value: object = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    elif name in _MODULES:
        value = import_module(f"{__name__}.{name}")
    elif name == "__version__":
        from hardpoint._version import own_version

        value = own_version()
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if TYPE_CHECKING:
    from hardpoint import agreement as agreement
    from hardpoint import attention as attention
    from hardpoint import errors as errors
    from hardpoint import hookspecs as hookspecs
    from hardpoint import platforms as platforms
    from hardpoint._backend_spec import BackendSpec as BackendSpec
    from hardpoint._backend_spec import Order as Order
    from hardpoint._capability import DeviceCapability as DeviceCapability
    from hardpoint._capability_names import normalise_gfx as normalise_gfx
    from hardpoint._capability_names import parse_compute_capability as parse_compute_capability
    from hardpoint._evaluation import Depth as Depth
    from hardpoint._fingerprint import Fingerprint as Fingerprint
    from hardpoint._inspection import inspect as inspect
    from hardpoint._kernels import KernelModule as KernelModule
    from hardpoint._kernels import KernelReport as KernelReport
    from hardpoint._log import log_once as log_once
    from hardpoint._machine import Machine as Machine
    from hardpoint._machine_live import LiveMachine as LiveMachine
    from hardpoint._machine_memory import InMemoryMachine as InMemoryMachine
    from hardpoint._process import current_platform as current_platform
    from hardpoint._process import override_platform as override_platform
    from hardpoint._process import platform as platform
    from hardpoint._process import register as register
    from hardpoint._process import reset as reset
    from hardpoint._process import resolve as resolve
    from hardpoint._profiles import Profile as Profile
    from hardpoint._profiles import list_profiles as list_profiles
    from hardpoint._reasons import Candidate as Candidate
    from hardpoint._reasons import Outcome as Outcome
    from hardpoint._reasons import Phase as Phase
    from hardpoint._reasons import Provenance as Provenance
    from hardpoint._reasons import Reason as Reason
    from hardpoint._reasons import ReasonCode as ReasonCode
    from hardpoint._recomputation import Recomputation as Recomputation
    from hardpoint._report import Report as Report
    from hardpoint._report import fingerprint as fingerprint
    from hardpoint._report import report as report
    from hardpoint._resolution import Resolution as Resolution
    from hardpoint._selection import Selection as Selection
    from hardpoint._shared_object import load_library as load_library
    from hardpoint._simulation import simulate as simulate
    from hardpoint._snapshot import Snapshot as Snapshot
    from hardpoint._snapshot import read_snapshot as read_snapshot
    from hardpoint._snapshot import snapshot as snapshot
    from hardpoint._start_method import StartMethod as StartMethod
    from hardpoint.attention import AttentionBackend as AttentionBackend
    from hardpoint.attention import AttentionBatch as AttentionBatch
    from hardpoint.attention import AttentionConfig as AttentionConfig
    from hardpoint.attention import AttentionLayer as AttentionLayer
    from hardpoint.attention import AttentionSupport as AttentionSupport
    from hardpoint.attention import AttentionVariant as AttentionVariant
    from hardpoint.errors import EnvironmentFailure as EnvironmentFailure
    from hardpoint.errors import HardpointError as HardpointError
    from hardpoint.hookspecs import API_VERSION as API_VERSION
    from hardpoint.hookspecs import Detection as Detection
    from hardpoint.hookspecs import Device as Device
    from hardpoint.hookspecs import PlatformSpec as PlatformSpec
    from hardpoint.hookspecs import Rank as Rank
    from hardpoint.hookspecs import Setting as Setting
    from hardpoint.hookspecs import hookimpl as hookimpl
    from hardpoint.platforms import BackendPriority as BackendPriority
    from hardpoint.platforms import Platform as Platform

    __version__: str
