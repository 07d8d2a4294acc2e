"""Real plugin distributions on a temporary path: platforms and backends whose code a test writes."""

from __future__ import annotations

import itertools
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import hardpoint
from tests.distributions import add

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

_numbers = itertools.count()

PLATFORM_PLUGIN = """
from hardpoint.hookspecs import Detection, Device, PlatformSpec, Rank, Setting, hookimpl
from hardpoint import DeviceCapability, EnvironmentFailure, Reason
{top}

class Plugin:
    @hookimpl
    def hardpoint_platform(self):
        return PlatformSpec(api={api}, target="{package}.platform:FakePlatform", rank=Rank.{rank}{spec})

    @hookimpl
    def hardpoint_detect(self, machine):
        {detect}
{hooks}

plugin = Plugin()
"""

PLATFORM = """
from hardpoint.platforms import BackendPriority, Platform
from hardpoint import EnvironmentFailure, KernelModule
{top}

class FakePlatform(Platform):
    name = "{name}"
    vendor = "Fake"
    device_type = "cpu"
    dispatch_key = "CPU"
    supported_dtypes = ("float32",)
    torch_features = frozenset({{"aten"}})

    def backend_priorities(self, device_capability, config):
        return [{priorities}]
{body}
"""

BACKEND_PLUGIN = """
from hardpoint.attention import ANYTHING, AttentionSupport, AttentionVariant, Integers, OneOf
from hardpoint.hookspecs import BackendSpec, Order, hookimpl
{top}

class Plugin:
    @hookimpl
    def hardpoint_backend(self):
        return BackendSpec(
            api={api}, kind="{kind}", platforms={platforms}, target="{package}.implementation:Backend",
            support=AttentionSupport(({variants},)){spec},
        )
{hooks}

plugin = Plugin()
"""

EVERYTHING = (
    "AttentionVariant(head_size=ANYTHING, v_head_size=ANYTHING, num_kv_heads=ANYTHING, dtype=ANYTHING, "
    "kv_cache_dtype=ANYTHING, block_size=ANYTHING, attention_type=ANYTHING, causal=ANYTHING, sliding_window=ANYTHING, "
    "sinks=ANYTHING, alibi=ANYTHING, soft_cap=ANYTHING, kv_sharing=ANYTHING, batch_invariant=ANYTHING, "
    "kv_lora_rank=ANYTHING, qk_rope_head_dim=ANYTHING, qk_nope_head_dim=ANYTHING{more})"
)

IMPLEMENTATION = """
from hardpoint import EnvironmentFailure, Reason
from hardpoint.attention import AttentionBackend, CacheTensorSpec, KVCacheSpec
{top}

class Backend(AttentionBackend):
    @classmethod
    def validate_configuration(cls, device_capability, config):
        {validate}

    @classmethod
    def prepare(cls, config, device):
        {prepare}

    @classmethod
    def kv_cache_spec(cls, config):
        axes = ("block", "token", "head", "content")
        sizes = (config.block_size, config.num_kv_heads, config.head_size)
        return KVCacheSpec(tensors=(
            CacheTensorSpec(role="key", axes=axes, sizes=sizes, dtype=config.cache_dtype, stride_orders=(axes,)),
        ))

    @classmethod
    def create_layer(cls, config, **arguments):
        raise NotImplementedError

    @classmethod
    def plan(cls, config, batch):
        raise NotImplementedError
{body}
"""


def _indent(text: str, columns: int) -> str:
    return textwrap.indent(textwrap.dedent(text).strip("\n"), " " * columns).lstrip() if text else ""


def usable(version: str = "9.0", runtime: str = "fake", count: int = 1) -> str:
    """The body of a detection that finds `count` devices of one capability."""
    return usable_each(*[version] * count, runtime=runtime)


def usable_each(*versions: str, runtime: str = "fake") -> str:
    """The body of a detection that finds one device of each capability."""
    devices = ", ".join(
        f"Device(index={index}, name='Fake {version}', physical_id={index}, "
        f"capability=DeviceCapability.parse({version!r}, runtime={runtime!r}))"
        for index, version in enumerate(versions)
    )
    return f"return Detection.usable([{devices}])"


class Site:
    """A folder on ``sys.path`` with distributions, each of one plugin. Only they take part in decisions."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.monkeypatch = monkeypatch
        self.allowed: list[str] = ["no-such-distribution"]
        monkeypatch.syspath_prepend(str(folder))
        self.allow()

    def allow(self, *distributions: str) -> None:
        """Admit distributions, on top of those that were added."""
        self.allowed += distributions
        self.monkeypatch.setenv("HARDPOINT_PLUGINS", ",".join(self.allowed))

    def distribution(
        self,
        name: str,
        entry_points: str,
        files: dict[str, str],
        *,
        version: str = "1.0",
        requires: tuple[str, ...] = (),
    ) -> None:
        """Write a distribution with its metadata and its files."""
        lines = "".join(f"Requires-Dist: {item}\n" for item in requires)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{lines}\n"
        add(self.folder, f"{name.replace('-', '_')}-{version}.dist-info", entry_points, metadata=metadata)
        for path, text in files.items():
            target = self.folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        self.allow(name)
        hardpoint.reset()

    def platform(
        self,
        name: str,
        *,
        detect: str = "",
        rank: str = "VENDOR",
        api: str = "(1, 0)",
        spec: str = "",
        hooks: str = "",
        plugin_top: str = "",
        platform_top: str = "",
        priorities: str = "",
        body: str = "",
        called: str | None = None,
        distribution: str | None = None,
        version: str = "1.0",
        requires: tuple[str, ...] = (),
    ) -> str:
        """Add a platform plugin; returns its package's name, which no other test uses."""
        package = f"fake_platform_{next(_numbers)}"
        files = {
            f"{package}/__init__.py": "",
            f"{package}/plugin.py": PLATFORM_PLUGIN.format(
                top=textwrap.dedent(plugin_top),
                api=api,
                package=package,
                rank=rank,
                spec=f", {spec}" if spec else "",
                detect=_indent(detect or usable(), 8),
                hooks="    " + _indent(hooks, 4) if hooks else "",
            ),
            f"{package}/platform.py": PLATFORM.format(
                top=textwrap.dedent(platform_top),
                name=name if called is None else called,
                priorities=priorities,
                body="    " + _indent(body, 4) if body else "",
            ),
        }
        entry_points = f"[hardpoint.platforms]\n{name} = {package}.plugin:plugin\n"
        distribution = distribution or f"fake-{name.replace('_', '-')}"
        self.distribution(distribution, entry_points, files, version=version, requires=requires)
        return package

    def backend(
        self,
        name: str,
        *,
        kind: str = "attention",
        platforms: str = '("torch-device",)',
        api: str = "(1, 0)",
        variants: str | None = None,
        more: str = "",
        spec: str = "",
        hooks: str = "",
        plugin_top: str = "",
        top: str = "",
        validate: str = "return []",
        prepare: str = "return None",
        body: str = "",
        distribution: str | None = None,
        version: str = "1.0",
    ) -> str:
        """Add a backend plugin; returns its package's name. `more` adds limits to a variant that accepts everything."""
        package = f"fake_backend_{next(_numbers)}"
        files = {
            f"{package}/__init__.py": "",
            f"{package}/plugin.py": BACKEND_PLUGIN.format(
                top=textwrap.dedent(plugin_top),
                api=api,
                kind=kind,
                platforms=platforms,
                package=package,
                variants=variants or EVERYTHING.format(more=f", {more}" if more else ""),
                spec=f", {spec}" if spec else "",
                hooks="    " + _indent(hooks, 4) if hooks else "",
            ),
            f"{package}/implementation.py": IMPLEMENTATION.format(
                top=textwrap.dedent(top),
                validate=_indent(validate, 8),
                prepare=_indent(prepare, 8),
                body="    " + _indent(body, 4) if body else "",
            ),
        }
        entry_points = f"[hardpoint.backends]\n{name} = {package}.plugin:plugin\n"
        self.distribution(distribution or f"fake-{name.replace('_', '-')}", entry_points, files, version=version)
        return package


def imported(package: str, module: str) -> bool:
    """Whether a module of a fake plugin has been imported."""
    return f"{package}.{module}" in sys.modules


def config(**changes: Any) -> hardpoint.AttentionConfig:
    """A plain decoder layer, with some fields changed."""
    arguments: dict[str, Any] = {"head_size": 64, "num_heads": 4, "dtype": "float32", "block_size": 16}
    return hardpoint.AttentionConfig(**{**arguments, **changes})
