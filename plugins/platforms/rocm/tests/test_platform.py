from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from hardpoint import EnvironmentFailure, InMemoryMachine, LiveMachine
from hardpoint.errors import ConfigError
from hardpoint_rocm.platform import RocmPlatform
from hardpoint_rocm.plugin import plugin

if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[..., InMemoryMachine]
    Card = Callable[..., dict[str, int]]
    Node = Callable[..., dict[str, str]]

WSL = "5.15.167.4-microsoft-standard-WSL2"
AT = "/sys/bus/pci/devices/0000:10:00.0"


def build(machine: InMemoryMachine) -> RocmPlatform:
    """The platform of what is detected."""
    return RocmPlatform(machine, plugin.hardpoint_detect(machine).devices)


def test_identity(make_machine: Make, card: Card) -> None:
    """Separate things have separate names: torch calls these devices cuda, and RCCL nccl."""
    platform = build(make_machine([card()]))
    assert (platform.name, platform.vendor, platform.device_type) == ("rocm", "AMD", "cuda")
    assert (platform.dispatch_key, platform.dist_backend, platform.ray_device_key) == ("CUDA", "nccl", "GPU")
    assert platform.device_control_env_vars == ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    assert platform.device_string(0) == "cuda:0"
    assert platform.supports_graph_capture()
    with pytest.raises(ConfigError, match="rocm has no device 1"):
        platform.set_device(1)


ARCHES = {"gfx90a": 90010, "gfx942": 90402, "gfx950": 90500, "gfx1030": 100300, "gfx1100": 110000, "gfx1201": 120001}


@pytest.mark.parametrize(
    ("names", "dtypes", "fp8", "fp8_dtype"),
    [
        (["gfx90a"], ("bfloat16", "float16", "float32", "float64"), False, "float8_e4m3fn"),
        (["gfx942"], ("bfloat16", "float16", "float32", "float64"), True, "float8_e4m3fnuz"),
        (["gfx950"], ("bfloat16", "float16", "float32", "float64"), True, "float8_e4m3fn"),
        (["gfx1201"], ("bfloat16", "float16", "float32", "float64"), True, "float8_e4m3fn"),
        (["gfx1100"], ("bfloat16", "float16", "float32", "float64"), False, "float8_e4m3fn"),
        (["gfx1030"], ("float16", "float32", "float64"), False, "float8_e4m3fn"),
        (["gfx942", "gfx950"], ("bfloat16", "float16", "float32", "float64"), False, "float8_e4m3fn"),
        (["gfx950", "gfx1201"], ("bfloat16", "float16", "float32", "float64"), True, "float8_e4m3fn"),
        ([None], ("float32", "float64"), False, "float8_e4m3fn"),
    ],
)
def test_precision(
    make_machine: Make, card: Card, names: list[str], dtypes: tuple[str, ...], fp8: bool, fp8_dtype: str
) -> None:
    """What every visible device has the feature for; two encodings of 8-bit floating point are none in common."""
    cards = [card(number, gfx_target_version=ARCHES.get(name)) for number, name in enumerate(names)]
    platform = build(make_machine(cards))
    assert (platform.supported_dtypes, platform.supports_fp8(), platform.fp8_dtype()) == (dtypes, fp8, fp8_dtype)


def test_no_device_no_precision() -> None:
    """A platform without devices promises nothing."""
    platform = RocmPlatform(InMemoryMachine(), ())
    assert (platform.supported_dtypes, platform.supports_fp8()) == (("float32", "float64"), False)


@pytest.mark.parametrize(("release", "expected"), [("6.8.0-45-generic", True), (WSL, False)])
def test_pinned_memory(release: str, expected: bool) -> None:
    """Pinned memory is there, but not on WSL."""
    assert RocmPlatform(InMemoryMachine(kernel_release=release), ()).is_pin_memory_available() is expected


def test_affinity(make_machine: Make, card: Card) -> None:
    """The CPUs nearest to a device are the kernel's list within the process's mask; unknown is None."""
    files = {f"{AT}/local_cpulist": "0-3,8\n"}
    assert build(make_machine([card()], files=files, affinity=[2, 9])).get_device_cpu_affinity() == frozenset((2,))
    assert build(make_machine([card()])).get_device_cpu_affinity() is None


XGMI = {"type": 11, "weight": 15, "flags": 1}
PCIE = {"type": 2, "weight": 40, "flags": 1}
NO_PEER = {"type": 2, "weight": 40, "flags": 1 | 1 << 4}
DISABLED = {"type": 11, "weight": 15, "flags": 0}


@pytest.mark.parametrize(
    ("link", "peers", "xgmi"),
    [(XGMI, True, True), (PCIE, True, False), (NO_PEER, False, False), (DISABLED, False, False), (None, False, False)],
)
def test_links(make_machine: Make, card: Card, node: Node, link: Any, peers: bool, xgmi: bool) -> None:
    """Peers are as the kernel's links say: over XGMI or PCIe, switched on, and with access to memory."""
    to_cpu = {"type": 2, "node_to": 0, "flags": 1}
    links = [to_cpu, *([] if link is None else [{"node_to": 2, **link}])]
    machine = make_machine([node(1, card(0), links=links), node(2, card(1))])
    platform = build(machine)
    assert (platform.are_peers(0, 1), platform.are_xgmi_peers(0, 1)) == (peers, xgmi)
    assert (platform.are_peers(1, 1), platform.are_xgmi_peers(1, 1)) == (True, False)


def test_links_over_pcie_only(make_machine: Make, card: Card, node: Node) -> None:
    """Newer kernels tell links between devices over PCIe in a folder of their own."""
    folder = "/sys/class/kfd/kfd/topology/nodes/1"
    files = {
        f"{folder}/io_links/0/properties": "node_to 0\ntype 2\nflags 1\n",
        f"{folder}/p2p_links/0/properties": "node_to 2\ntype 2\nflags 1\n",
    }
    platform = build(make_machine([card(0), card(1)], files=files))
    assert (platform.are_peers(0, 1), platform.are_xgmi_peers(0, 1)) == (True, False)


def test_links_unknown(make_machine: Make, card: Card) -> None:
    """Without links in the files, cards of one hive are connected by XGMI, and of others nobody knows."""
    same = build(make_machine([card(0, hive_id=9), card(1, hive_id=9)]))
    assert (same.are_peers(0, 1), same.are_xgmi_peers(0, 1)) == (True, True)
    other = build(make_machine([card(0, hive_id=9), card(1, hive_id=8)]))
    assert (other.are_peers(0, 1), other.are_xgmi_peers(0, 1)) == (None, None)
    without = build(make_machine([card(0), card(1)]))
    assert (without.are_peers(0, 1), without.are_xgmi_peers(0, 1)) == (None, None)


@pytest.mark.parametrize(("text", "expected"), [("296747008\n", 296747008), ("-1", None), ("", None), ("9" * 30, None)])
def test_memory_in_use(make_machine: Make, card: Card, text: str, expected: int | None) -> None:
    """What the kernel counts is the answer; what is no number is unknown."""
    files = {f"{AT}/mem_info_vram_used": text}
    assert build(make_machine([card()], files=files)).get_current_memory_usage() == expected
    assert build(make_machine([card(location_id=None)], files=files)).get_current_memory_usage() is None


def test_memory_in_use_of_a_part(make_machine: Make, card: Card) -> None:
    """The kernel counts for whole cards: of a part of one the memory in use is unknown."""
    files = {f"{AT}/mem_info_vram_used": "5", f"{AT}/current_compute_partition": "CPX"}
    assert build(make_machine([card()], files=files)).get_current_memory_usage() is None


@pytest.mark.torch
def test_torch_without_hip(make_machine: Make, card: Card) -> None:
    """What computes says which torch is missing, where torch itself fails an assertion."""
    torch = pytest.importorskip("torch")
    if torch.version.hip is not None:
        pytest.skip("this torch is built for ROCm")
    platform = build(make_machine([card()]))
    for action in (platform.set_device, platform.synchronize, platform.empty_cache):
        with pytest.raises(EnvironmentFailure, match="is not built for ROCm") as failure:
            action()
        assert failure.value.code == "other_build"


class FakeHip:
    """As much of torch.cuda as is asked; a CPU build of torch cannot be initialised."""

    def __init__(self, *, initialised: bool = True, bad_fork: bool = False, gone: bool = False) -> None:
        self.initialised, self.bad_fork, self.gone = initialised, bad_fork, gone

    def is_initialized(self) -> bool:
        return self.initialised

    def _is_in_bad_fork(self) -> bool:
        return self.bad_fork

    def memory_reserved(self, index: int) -> int:
        if self.gone:
            raise RuntimeError("HIP error: invalid device ordinal")
        return 700 + index

    def get_device_properties(self, index: int) -> Any:
        if self.gone:
            raise RuntimeError("HIP error: invalid device ordinal")
        return SimpleNamespace(total_memory=9000)


@pytest.fixture
def fake_torch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put a torch with such a `torch.cuda` among the imported modules."""

    def put(**state: bool) -> None:
        module: Any = ModuleType("torch")
        module.cuda = FakeHip(**state)
        module.version = SimpleNamespace(hip="7.0")
        module.__version__ = "9.9"
        monkeypatch.setitem(sys.modules, "torch", module)

    return put


def live(make_machine: Make, card: Card) -> RocmPlatform:
    """The platform of a device of which the kernel tells neither address nor memory, on this computer."""
    bank = "/sys/class/kfd/kfd/topology/nodes/1/mem_banks/0/properties"
    machine = make_machine([card(location_id=None)], files={bank: None})
    return RocmPlatform(LiveMachine(), plugin.hardpoint_detect(machine).devices)


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
        ({"initialised": False, "bad_fork": True}, "forked from one in which torch had initialised HIP"),
        ({"initialised": True}, "torch has initialised HIP"),
    ],
)
def test_start_method_by_torch(fake_torch: Callable[..., None], state: dict[str, bool], words: str) -> None:
    """B16: torch's own word counts, in a badly forked child too, where its flag says no."""
    fake_torch(**state)
    method = RocmPlatform(LiveMachine(), ()).recommended_start_method()
    assert (method.name, words in method.reason) == ("spawn", True)


class Forked(InMemoryMachine):
    """A process whose open files are made up, on a machine that counts as live."""

    live = True


def test_start_method_by_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """B16: the runtime keeps its node open, also in a child of the process that initialised it; in WSL another one."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    links = {"/proc/self/fd/3": "/dev/null", "/proc/self/fd/7": "/dev/kfd"}
    there = Forked(links=links, files={"/dev/kfd": ""})
    assert RocmPlatform(there, ()).recommended_start_method() == (
        "spawn",
        "the ROCm runtime was initialised here or in a parent: /dev/kfd is open",
    )
    wsl = Forked(links={"/proc/self/fd/3": "/dev/dxg"}, kernel_release=WSL)
    assert RocmPlatform(wsl, ()).recommended_start_method().name == "spawn"
    for calm in (Forked(links={"/proc/self/fd/3": "/dev/null"}), Forked(), InMemoryMachine(links=links)):
        assert RocmPlatform(calm, ()).recommended_start_method().name == "fork"
