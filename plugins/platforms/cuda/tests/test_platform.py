from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from hardpoint import EnvironmentFailure, InMemoryMachine, LiveMachine
from hardpoint.errors import ConfigError
from hardpoint_cuda.platform import CudaPlatform
from hardpoint_cuda.plugin import plugin

if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[..., InMemoryMachine]
    Card = Callable[..., dict[str, Any]]

WSL = "5.15.167.4-microsoft-standard-WSL2"


def build(machine: InMemoryMachine) -> CudaPlatform:
    """The platform of what is detected."""
    return CudaPlatform(machine, plugin.hardpoint_detect(machine).devices)


def test_identity(make_machine: Make, card: Card) -> None:
    """Separate things have separate names."""
    platform = build(make_machine([card()]))
    assert (platform.name, platform.vendor, platform.device_type) == ("cuda", "NVIDIA", "cuda")
    assert (platform.dispatch_key, platform.dist_backend, platform.ray_device_key) == ("CUDA", "nccl", "GPU")
    assert platform.device_control_env_vars == ("CUDA_VISIBLE_DEVICES",)
    assert platform.device_string(0) == "cuda:0"
    assert platform.supports_graph_capture()
    with pytest.raises(ConfigError, match="cuda has no device 1"):
        platform.set_device(1)


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ([[9, 0]], ("bfloat16", "float16", "float32", "float64")),
        ([[8, 0], [7, 5]], ("float16", "float32", "float64")),
        ([[7, 5]], ("float16", "float32", "float64")),
        ([[5, 2]], ("float32", "float64")),
        ([None], ("float32", "float64")),
    ],
)
def test_dtypes(make_machine: Make, card: Card, versions: list[Any], expected: tuple[str, ...]) -> None:
    """What every visible device has the feature for, the first as the default."""
    cards = [card(number, capability=version) for number, version in enumerate(versions)]
    machine = make_machine(cards, variables={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert build(machine).supported_dtypes == expected


@pytest.mark.parametrize(("version", "expected"), [([8, 9], True), ([8, 6], False), (None, False)])
def test_fp8(make_machine: Make, card: Card, version: Any, expected: bool) -> None:
    """fp8 is a feature from 8.9 on."""
    platform = build(make_machine([card(capability=version)]))
    assert platform.supports_fp8() is expected
    assert platform.fp8_dtype() == "float8_e4m3fn"


@pytest.mark.parametrize(
    ("release", "wanted", "expected"),
    [
        ("6.8.0-45-generic", None, True),
        (WSL, None, False),
        (WSL, "1", True),
        (WSL, " ON ", True),
        (WSL, "0", False),
        ("4.19.121-microsoft-standard", "1", True),
        ("4.19.104-microsoft-standard", "1", False),
        ("4.4.0-19041-Microsoft", "1", False),
        ("microsoft", "1", False),
    ],
)
def test_pinned_memory(make_machine: Make, card: Card, release: str, wanted: str | None, expected: bool) -> None:
    """Pinned memory is there, on WSL only with a new enough kernel and where somebody asks for it."""
    variables = {} if wanted is None else {"HARDPOINT_CUDA_PIN_MEMORY_ON_WSL": wanted}
    machine = make_machine([card()], kernel_release=release, variables=variables)
    assert build(machine).is_pin_memory_available() is expected


def test_affinity(make_machine: Make, card: Card) -> None:
    """The CPUs nearest to a device are the kernel's list within the process's mask; unknown is None."""
    files = {"/sys/bus/pci/devices/0000:10:00.0/local_cpulist": "0-3,8,x\n"}
    assert build(make_machine([card()], files=files)).get_device_cpu_affinity() == frozenset((0, 1, 2, 3, 8))
    masked = make_machine([card()], files=files, affinity=[2, 9])
    assert build(masked).get_device_cpu_affinity() == frozenset((2,))
    assert build(make_machine([card()], files=files, affinity=[9])).get_device_cpu_affinity() is None
    assert build(make_machine([card()])).get_device_cpu_affinity() is None
    assert build(make_machine([card(pci_bus_id=None)])).get_device_cpu_affinity() is None


def test_peers(make_machine: Make, card: Card) -> None:
    """Peers are as NVML says; a device is its own, an instance has unknown ones, and so has who cannot be asked."""
    cards = [card(0, uuid="GPU-a"), card(1, uuid="GPU-b"), card(2, uuid=None)]
    answers: dict[str, Any] = {"cuda.peers.GPU-a.GPU-b": {"access": True, "nvlink": False}, "cuda.peers.GPU-b.GPU-a": 3}
    platform = build(make_machine(cards, more=answers))
    assert (platform.are_peers(0, 1), platform.are_nvlink_peers(0, 1)) == (True, False)
    assert (platform.are_peers(0, 0), platform.are_nvlink_peers(0, 0)) == (True, False)
    assert (platform.are_peers(1, 0), platform.are_peers(0, 2)) == (None, None)
    instance = card(mig_enabled=True, instances=[{"uuid": "MIG-1"}])
    assert build(make_machine([instance])).are_peers(0, 0) is None


@pytest.mark.parametrize("answer", [EnvironmentFailure("gone", code="driver"), None, -1, "5"])
def test_memory_in_use_unknown(make_machine: Make, card: Card, answer: Any) -> None:
    """Where NVML fails, does not count, or tells nonsense, the memory in use is None."""
    machine = make_machine([card(uuid="GPU-a")], more={"cuda.memory.GPU-a": answer})
    assert build(machine).get_current_memory_usage() is None


def test_memory_in_use(make_machine: Make, card: Card) -> None:
    """What NVML counts is the answer; a device without an id cannot be asked about."""
    machine = make_machine([card(uuid="GPU-a")], more={"cuda.memory.GPU-a": 5000})
    assert build(machine).get_current_memory_usage() == 5000
    assert build(make_machine([card(uuid=None)])).get_current_memory_usage() is None


@pytest.mark.torch
def test_torch_without_cuda(make_machine: Make, card: Card) -> None:
    """What computes says which torch is missing, where torch itself fails an assertion."""
    torch = pytest.importorskip("torch")
    if torch.version.cuda is not None:
        pytest.skip("this torch is built for CUDA")
    platform = build(make_machine([card()]))
    for action in (platform.set_device, platform.synchronize, platform.empty_cache):
        with pytest.raises(EnvironmentFailure, match="is not built for CUDA") as failure:
            action()
        assert failure.value.code == "other_build"


class FakeCuda:
    """As much of torch.cuda as is asked; a CPU build of torch cannot be initialised."""

    def __init__(self, *, initialised: bool = True, bad_fork: bool = False, gone: bool = False) -> None:
        self.initialised, self.bad_fork, self.gone = initialised, bad_fork, gone

    def is_initialized(self) -> bool:
        return self.initialised

    def _is_in_bad_fork(self) -> bool:
        return self.bad_fork

    def memory_reserved(self, index: int) -> int:
        if self.gone:
            raise RuntimeError("CUDA error: device not ready")
        return 700 + index

    def get_device_properties(self, index: int) -> Any:
        if self.gone:
            raise RuntimeError("CUDA error: device not ready")
        return SimpleNamespace(total_memory=9000)


@pytest.fixture
def fake_torch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put a torch with such a `torch.cuda` among the imported modules."""

    def put(**state: bool) -> None:
        module: Any = ModuleType("torch")
        module.cuda = FakeCuda(**state)
        module.version = SimpleNamespace(cuda="12.8")
        module.__version__ = "9.9"
        monkeypatch.setitem(sys.modules, "torch", module)

    return put


def live(make_machine: Make, card: Card, **changes: Any) -> CudaPlatform:
    """The platform of a device without NVML's help, on this computer."""
    machine = make_machine([card(uuid=None, memory_bytes=None, **changes)])
    return CudaPlatform(LiveMachine(), plugin.hardpoint_detect(machine).devices)


def test_torch_is_asked_last(make_machine: Make, card: Card, fake_torch: Callable[..., None]) -> None:
    """B09: what nobody else knows, torch tells once it is initialised; before that it is None."""
    platform = live(make_machine, card)
    fake_torch(initialised=False)
    assert (platform.get_device_total_memory(), platform.get_current_memory_usage()) == (None, None)
    fake_torch()
    assert (platform.get_device_total_memory(), platform.get_current_memory_usage()) == (9000, 700)
    fake_torch(gone=True)
    assert (platform.get_device_total_memory(), platform.get_current_memory_usage()) == (None, None)


def test_torch_that_is_being_imported(make_machine: Make, card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread is importing torch: it has no part for devices yet, and so has initialised none."""
    platform = live(make_machine, card)
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert (platform.get_device_total_memory(), platform.get_current_memory_usage()) == (None, None)
    assert platform.recommended_start_method().name == "fork"


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"initialised": False, "bad_fork": True}, "forked from one in which torch had initialised"),
        ({"initialised": True}, "torch has initialised CUDA"),
    ],
)
def test_start_method_by_torch(
    make_machine: Make, card: Card, fake_torch: Callable[..., None], state: dict[str, bool], words: str
) -> None:
    """B16: torch's own word counts, in a badly forked child too, where its flag says no."""
    fake_torch(**state)
    method = live(make_machine, card).recommended_start_method()
    assert method.name == "spawn"
    assert words in method.reason


@pytest.mark.parametrize(
    ("changes", "method", "words"),
    [
        ({"kernel_release": WSL}, "spawn", "WSL"),
        ({"system": "Windows"}, "spawn", "no fork"),
        ({}, "fork", "nothing has initialised"),
    ],
)
def test_start_method_by_system(make_machine: Make, card: Card, changes: Any, method: str, words: str) -> None:
    """B16: neither WSL nor Windows can fork."""
    devices = plugin.hardpoint_detect(make_machine([card()])).devices
    answer = CudaPlatform(make_machine([card()], **changes), devices).recommended_start_method()
    assert answer.name == method
    assert words in answer.reason


class Forked(InMemoryMachine):
    """A process whose open files are made up, on a machine that counts as live."""

    live = True


def test_start_method_by_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """B16: a child of a process in which CUDA was initialised has inherited its open device node."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    links = {"/proc/self/fd/3": "/dev/null", "/proc/self/fd/7": "/dev/nvidia-uvm"}
    there = Forked(links=links, files={"/dev/nvidia-uvm": ""}, probes={"cuda.initialised": False})
    assert CudaPlatform(there, ()).recommended_start_method() == (
        "spawn",
        "the CUDA driver was initialised here or in a parent: /dev/nvidia-uvm is open",
    )
    others = Forked(links={"/proc/self/fd/3": "/dev/nvidiactl"}, probes={"cuda.initialised": False})
    assert CudaPlatform(others, ()).recommended_start_method().name == "fork"
    assert CudaPlatform(Forked(probes={"cuda.initialised": False}), ()).recommended_start_method().name == "fork"
