from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import hardpoint
from hardpoint import EnvironmentFailure, InMemoryMachine
from hardpoint.errors import BackendUnavailableError, ConfigError
from hardpoint_neuron.platform import NeuronPlatform
from hardpoint_neuron.plugin import plugin

if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[..., InMemoryMachine]
    Entry = Callable[..., dict[str, Any]]

CONFIG = hardpoint.AttentionConfig(head_size=64, num_heads=8, num_kv_heads=8, dtype="bfloat16", block_size=16)
LATENT = hardpoint.AttentionConfig(
    kind="mla_attention", head_size=576, num_heads=16, num_kv_heads=1, dtype="bfloat16", block_size=16,
    kv_lora_rank=512, qk_rope_head_dim=64,
)  # fmt: skip


def build(machine: InMemoryMachine) -> NeuronPlatform:
    """The platform of what is detected."""
    return NeuronPlatform(machine, plugin.hardpoint_detect(machine).devices)


@pytest.mark.parametrize(
    ("kind", "installed", "device_type", "key"),
    [
        ("trn1", "2.9.0", "xla", "XLA"),
        ("trn2", "2.9.0", "xla", "XLA"),
        ("trn2", "2.14.3", "neuron", "PrivateUse1"),
        ("trn1", None, "xla", "XLA"),
        ("trn2", None, "neuron", "PrivateUse1"),
    ],
)
def test_identity(make_machine: Make, kind: str, installed: str | None, device_type: str, key: str) -> None:
    """Separate things have separate names: the platform's, torch's device, the dispatch key, Ray's resource."""
    platform = build(make_machine([kind], installed=installed))
    assert (platform.name, platform.vendor, platform.get_device_name()) == (
        "neuron",
        "AWS",
        {"trn1": "Trainium1", "trn2": "Trainium2"}[kind],
    )
    assert (platform.device_type, platform.dispatch_key, platform.dist_backend) == (device_type, key, device_type)
    assert platform.ray_device_key == "neuron_cores"
    assert platform.device_control_env_vars == ("NEURON_RT_VISIBLE_CORES",)
    assert platform.device_string(1) == f"{device_type}:1"
    assert platform.describe()["device_type"] == device_type
    assert not platform.is_pin_memory_available()
    assert not platform.supports_graph_capture()


def test_no_selectable_backend(make_machine: Make) -> None:
    """That attention lives in the compiled graph is an answer: no backend, no candidates, and why; for each kind."""
    platform = build(make_machine(["trn2"]))
    for config in (CONFIG, LATENT):
        selection = platform.select_backend(config)
        assert (selection.backend, selection.candidates, selection.is_fallback) == (None, (), False)
        assert selection.note == NeuronPlatform.attention_note
        assert "no selectable backend: attention lives in the compiled graph" in selection.explain()
        assert selection.as_dict()["note"] == selection.note
        assert platform.get_valid_backends(platform.get_device_capability(), config) == ([], {})
    assert platform.backend_priorities(platform.get_device_capability(), CONFIG) == ()


def test_backend_by_name_is_refused(make_machine: Make) -> None:
    """An explicit choice binds: a backend asked for by name is an error that says why there is none."""
    with pytest.raises(BackendUnavailableError, match=r"no selectable attention backend .*compiled graph"):
        build(make_machine(["trn2"])).select_backend(CONFIG, requested="torch_sdpa")
    assert build(make_machine(["trn2"])).select_backend(CONFIG, requested=["torch_sdpa", "auto"]).backend is None


@pytest.mark.parametrize(
    ("kinds", "dtypes", "fp8"),
    [
        (["trn1"], ("bfloat16", "float16", "float32"), False),
        (["trn2"], ("bfloat16", "float16", "float32"), True),
        (["inf2", "trn2"], ("bfloat16", "float16", "float32"), False),
    ],
)
def test_dtypes(make_machine: Make, kinds: list[str], dtypes: tuple[str, ...], fp8: bool) -> None:
    """What every core has the feature for; fp8 is there from NeuronCore-v3 on."""
    platform = build(make_machine(kinds))
    assert platform.supported_dtypes == dtypes
    assert platform.supports_fp8() is fp8
    assert platform.fp8_dtype() == "float8_e4m3fn"
    platform.check_if_supports_dtype("bfloat16")
    with pytest.raises(ConfigError, match="float64"):
        platform.check_if_supports_dtype("float64")


def test_dtypes_of_an_unknown_core(make_machine: Make) -> None:
    """Of a core whose generation nobody knows only float32 is certain."""
    name = "/sys/devices/virtual/neuron_device/neuron0/info/architecture/device_name"
    instance = "/sys/devices/virtual/neuron_device/neuron0/info/architecture/instance_type"
    platform = build(make_machine(["trn2"], files={name: "Trainium9", instance: "Trn9"}))
    assert (platform.supported_dtypes, platform.supports_fp8()) == (("float32",), False)
    assert platform.get_device_name() == "Trainium9"


def test_memory_in_use(make_machine: Make) -> None:
    """The driver's counters of the physical cores, added up; None where one of them cannot be read."""
    machine = make_machine(["trn2", "trn2"])
    platform = build(machine)
    assert platform.get_current_memory_usage(0) == 0 + 1
    assert platform.get_current_memory_usage(7) == 1006 + 1007
    broken = "/sys/devices/virtual/neuron_device/neuron0/neuron_core1/stats/memory_usage/device_mem/total"
    assert build(make_machine(["trn2"], files={broken: "-5"})).get_current_memory_usage(0) is None
    chosen_later = build(make_machine(["trn2"], variables={"NEURON_RT_NUM_CORES": "1"}))
    assert chosen_later.get_current_memory_usage(0) is None


def test_peers(make_machine: Make, entry: Entry) -> None:
    """Cores of one chip, and of chips with a direct link, reach each other; None where nobody says."""
    import json

    links = [[1], [0, 2], [1]]
    tool = json.dumps([entry(number, "trn1", connected_to=links[number]) for number in range(3)])
    platform = build(make_machine(["trn1"] * 3, tool=tool))
    assert [platform.are_peers(0, other) for other in range(6)] == [True, True, True, True, False, False]
    assert platform.are_peers(5, 2) is True
    silent = build(make_machine(["trn1"] * 2, tool=None))
    assert (silent.are_peers(0, 1), silent.are_peers(0, 2)) == (True, None)
    half = json.dumps([entry(0, "trn1", connected_to=[1]), {"neuron_device": 1, "nc_count": 2}])
    assert build(make_machine(["trn1"] * 2, tool=half)).are_peers(3, 0) is True
    chosen_later = build(make_machine(["trn1"] * 2, variables={"NEURON_RT_NUM_CORES": "2"}))
    assert chosen_later.are_peers(0, 1) is None


def test_affinity(make_machine: Make) -> None:
    """The CPUs near the chip, as far as this process may use them."""
    platform = build(make_machine(["trn1"] * 2, affinity=range(6)))
    assert platform.get_device_cpu_affinity(0) == frozenset(range(4))
    assert platform.get_device_cpu_affinity(2) == frozenset((4, 5))
    assert platform.get_device_numa_node(2) == 1
    assert build(make_machine(["trn1"] * 2, affinity=[0])).get_device_cpu_affinity(2) is None
    assert build(make_machine(["trn1"], affinity=None)).get_device_cpu_affinity(0) == frozenset(range(4))
    assert build(make_machine(["trn1"], tool=None)).get_device_cpu_affinity(0) is None


class FakeTorch(ModuleType):
    """A torch with a device of its own, which writes down what it is asked."""

    def __init__(self, **names: Any) -> None:
        super().__init__("torch")
        self.calls: list[Any] = []
        self.__version__ = "9.9"
        self.__dict__.update(names)

    def get_device_module(self, device_type: str) -> Any:
        if device_type != "neuron":
            raise RuntimeError(f"no device module for {device_type}")
        return SimpleNamespace(
            set_device=lambda index: self.calls.append(("set", index)),
            synchronize=lambda index: self.calls.append(("wait", index)),
            empty_cache=lambda: self.calls.append("empty"),
            manual_seed_all=lambda seed: self.calls.append(("seed all", seed)),
        )

    def manual_seed(self, seed: int) -> None:
        self.calls.append(("seed", seed))


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    """A torch, and a torch-xla, among the imported modules."""
    fake = FakeTorch()
    model: Any = ModuleType("torch_xla.core.xla_model")
    model.wait_device_ops = lambda: fake.calls.append("wait for all")
    model.set_rng_state = lambda seed: fake.calls.append(("seed xla", seed))
    for module in (fake, ModuleType("torch_xla"), ModuleType("torch_xla.core"), model):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return fake


def use(platform: NeuronPlatform) -> None:
    """Each call that may reach a device."""
    platform.set_device(1)
    platform.synchronize(1)
    platform.empty_cache()
    platform.manual_seed_all(7)


def test_execution_through_privateuse1(make_machine: Make, torch: FakeTorch) -> None:
    """With a device of its own, torch's module for it is asked."""
    use(build(make_machine(["trn2"], installed="2.14.3")))
    assert torch.calls == [("set", 1), ("wait", 1), "empty", ("seed", 7), ("seed all", 7)]


def test_execution_through_xla(make_machine: Make, torch: FakeTorch) -> None:
    """With torch-xla there is no current device and no cache; it waits for everything at once."""
    use(build(make_machine(["trn2"], installed="2.9.0")))
    assert torch.calls == ["wait for all", ("seed", 7), ("seed xla", 7)]


def test_torch_without_the_device(make_machine: Make, torch: FakeTorch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that does not know the device is the environment's fault, with the remedy."""
    platform = build(make_machine(["trn2"], installed="2.14.3"))
    monkeypatch.setattr(FakeTorch, "get_device_module", lambda self, name: self.nothing)
    with pytest.raises(EnvironmentFailure, match=r"torch 9\.9 has no device 'neuron'") as raised:
        platform.set_device(0)
    assert raised.value.code == "other_build"
    with pytest.raises(ConfigError, match="neuron has no device 9"):
        platform.synchronize(9)
