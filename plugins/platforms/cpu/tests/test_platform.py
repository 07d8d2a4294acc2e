from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hardpoint import AttentionConfig, Device, InMemoryMachine
from hardpoint.errors import ConfigError
from hardpoint_cpu._detect import detect
from hardpoint_cpu.platform import CpuPlatform

if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[..., InMemoryMachine]

NODE_FILES = {
    "/sys/devices/system/node/node0/cpulist": "0-31\n",
    "/sys/devices/system/node/node1/cpulist": "32-63\n",
    "/sys/devices/system/node/node2/cpulist": "\n",
}
SIBLINGS = {
    f"/sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list": f"{cpu % 4},{cpu % 4 + 4}\n" for cpu in range(8)
}


def platform_of(machine: InMemoryMachine) -> CpuPlatform:
    """The platform as a resolution builds it."""
    return CpuPlatform(machine, detect(machine).devices)


def test_identity(make_machine: Make) -> None:
    """The names serve different purposes and are told apart."""
    platform = platform_of(make_machine(vendor="AuthenticAMD"))
    assert (platform.name, platform.vendor, platform.device_type) == ("cpu", "AMD", "cpu")
    assert (platform.dispatch_key, platform.dist_backend, platform.ray_device_key) == ("CPU", "gloo", "CPU")
    assert platform.device_control_env_vars == ()
    assert platform.torch_features == {"aten", "sdpa", "compile"}
    assert not hasattr(platform, "no_such_member")


def test_inventory(make_machine: Make) -> None:
    """There is one device, with the name and memory that were found."""
    platform = platform_of(make_machine(model="Xeon"))
    assert platform.device_count() == 1
    assert (platform.get_device_name(), platform.get_device_total_memory()) == ("Xeon", 64 << 30)
    assert platform.get_device_uuid() is None
    capability = platform.get_device_capability()
    assert capability is not None
    assert str(capability) == "x86-64-v3"


@pytest.mark.parametrize("member", ["set_device", "synchronize", "get_current_memory_usage", "get_device_cpu_affinity"])
def test_there_is_no_second_device(make_machine: Make, member: str) -> None:
    """Every member that takes a device refuses one that does not exist, as on any platform."""
    platform = platform_of(make_machine())
    getattr(platform, member)(0)
    with pytest.raises(ConfigError):
        getattr(platform, member)(1)


def test_nothing_to_give_back(make_machine: Make) -> None:
    """There is no cache of CPU memory, and page-locked memory is no use for copies that do not happen."""
    platform = platform_of(make_machine())
    platform.empty_cache()
    assert platform.is_pin_memory_available() is False
    assert platform.supports_graph_capture() is False
    assert platform.supports_fp8() is False


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("Name:\tpython\nVmPeak:\t  99999 kB\nVmRSS:\t    1234 kB\nThreads:\t4\n", 1234 * 1024),
        ("Name:\tkthreadd\nThreads:\t1\n", None),
        ("VmRSS:\n", None),
        ("VmRSS:\tmuch kB\n", None),
        (PermissionError(13, "Permission denied"), None),
    ],
)
def test_memory_in_use(make_machine: Make, status: str | OSError, expected: int | None) -> None:
    """The resident memory of the process, in bytes; unknown where the system does not say."""
    assert platform_of(make_machine(files={"/proc/self/status": status})).get_current_memory_usage() == expected


@pytest.mark.parametrize(
    ("cpu", "expected"),
    [
        ("haswell", ("float32", "bfloat16", "float16", "float64")),
        ("skylake", ("float32", "bfloat16", "float16", "float64")),
        ("cooper lake", ("bfloat16", "float16", "float32", "float64")),
    ],
)
def test_default_dtype_follows_the_instructions(make_machine: Make, cpu: str, expected: tuple[str, ...]) -> None:
    """bfloat16 is the default exactly where the CPU multiplies in it; the rest is there all the same."""
    assert platform_of(make_machine(cpu)).supported_dtypes == expected


def test_dtypes_of_other_families(make_arm_machine: Make) -> None:
    """Arm with BF16 prefers it; POWER and others begin with float32; an Apple CPU without BF16 does not offer it."""
    assert platform_of(make_arm_machine("grace")).supported_dtypes[0] == "bfloat16"
    assert platform_of(make_arm_machine("graviton 2")).supported_dtypes[0] == "float32"
    power = InMemoryMachine(system="Linux", architecture="ppc64le")
    assert platform_of(power).supported_dtypes == ("float32", "bfloat16", "float16", "float64")
    old = InMemoryMachine(system="Darwin", architecture="arm64")
    assert platform_of(old).supported_dtypes == ("float32", "float16", "float64")
    tools = {"sysctl hw.optional machdep.cpu": "hw.optional.arm.FEAT_BF16: 1\n"}
    new = InMemoryMachine(system="Darwin", architecture="arm64", tools=tools)
    assert platform_of(new).supported_dtypes[0] == "bfloat16"


def test_unsupported_dtype_is_refused(make_machine: Make) -> None:
    """The message says what would be taken."""
    with pytest.raises(ConfigError, match="cpu does not support int8 here; supported are float32, bfloat16"):
        platform_of(make_machine()).check_if_supports_dtype("int8")


def test_affinity_and_nodes(make_machine: Make) -> None:
    """With the mask in node 1, that is the only node, and every binding is inside the mask."""
    mask = frozenset(range(40, 44))
    platform = platform_of(make_machine(files=NODE_FILES, affinity=mask, cpu_count=64))
    assert platform.cpu_affinity == platform.get_device_cpu_affinity() == mask
    assert [node.id for node in platform.numa_nodes()] == [1]
    assert platform.get_device_numa_node() == 1
    assert platform.usable_cpus == 4
    for ranks in (1, 2, 3, 4):
        shares = platform.partition_cores(ranks)
        assert frozenset().union(*(share.cpus or frozenset() for share in shares)) == mask
        assert {share.numa_node for share in shares} == {1}


def test_mask_stays_as_it_was_at_resolution(make_machine: Make) -> None:
    """The platform answers from its devices: another machine's mask does not change it."""
    devices = detect(make_machine(affinity=frozenset((0, 1)))).devices
    assert CpuPlatform(make_machine(affinity=frozenset((5,))), devices).cpu_affinity == frozenset((0, 1))


def test_ranks_stay_on_their_nodes(make_machine: Make) -> None:
    """Two ranks on two nodes have a node each; CPUs of no known node are a part of their own."""
    platform = platform_of(make_machine(files=NODE_FILES, affinity=frozenset(range(64)), cpu_count=64))
    assert [(share.numa_node, len(share.cpus or ())) for share in platform.partition_cores(2)] == [(0, 32), (1, 32)]
    wider = platform_of(make_machine(files=NODE_FILES, affinity=frozenset(range(66)), cpu_count=66))
    assert [share.numa_node for share in wider.partition_cores(3)] == [0, 1, None]


def test_threads_under_a_quota(make_machine: Make) -> None:
    """A quota of four CPUs on a mask of 64: four threads, two for each of two ranks."""
    files = {**NODE_FILES, "/sys/fs/cgroup/cpu.max": "400000 100000\n"}
    platform = platform_of(make_machine(files=files, affinity=frozenset(range(64)), cpu_count=64))
    assert platform.usable_cpus == platform.recommended_threads() == 4
    assert [share.threads for share in platform.partition_cores(2)] == [2, 2]


def test_one_thread_per_core(make_machine: Make) -> None:
    """Eight hardware threads of four cores are eight usable CPUs, on which four threads compute best."""
    platform = platform_of(make_machine(files=SIBLINGS, affinity=frozenset(range(8))))
    assert (platform.usable_cpus, platform.recommended_threads()) == (8, 4)


@pytest.mark.parametrize(
    ("text", "expected"), [("3", 3), (" 16 ", 16), ("2,4", 2), ("", 4), ("0", 4), ("-1", 4), ("many", 4), ("9" * 50, 4)]
)
def test_number_of_threads_that_the_user_asked_for(make_machine: Make, text: str, expected: int) -> None:
    """A valid OMP_NUM_THREADS binds, of a list its first; anything else counts as not set."""
    assert platform_of(make_machine(variables={"OMP_NUM_THREADS": text})).recommended_threads() == expected


def test_system_that_binds_nothing() -> None:
    """On macOS there is no mask: threads are divided, and there is nothing to bind to."""
    platform = platform_of(InMemoryMachine(system="Darwin", architecture="arm64", cpu_count=5))
    assert platform.cpu_affinity is None
    assert platform.recommended_threads() == 5
    assert [(share.cpus, share.threads) for share in platform.partition_cores(2)] == [(None, 3), (None, 2)]


def test_more_ranks_than_cpus(make_machine: Make) -> None:
    """There is no sharing of a CPU between ranks: the error says how many there are."""
    with pytest.raises(ConfigError, match="num_ranks=5: each rank needs a CPU of its own, and this process may use 4"):
        platform_of(make_machine()).partition_cores(5)


def test_simulated_device(make_machine: Make) -> None:
    """A device of which little is known still makes a platform, that promises nothing."""
    platform = CpuPlatform(make_machine(), [Device(index=0, name="CPU")])
    assert (platform.vendor, platform.usable_cpus, platform.cpu_affinity) == ("unknown", 1, None)
    assert platform.supported_dtypes[0] == "float32"
    assert all(module.unsupported is not None for module in platform.kernel_modules())


def test_order_of_backends(make_machine: Make) -> None:
    """The order is that of the table."""
    platform = platform_of(make_machine())
    config = AttentionConfig(head_size=64, num_heads=8, dtype="float32")
    order = platform.backend_priorities(platform.get_device_capability(), config)
    assert [item.name for item in order] == ["cpu_native", "torch_sdpa", "flex_attention"]


@pytest.mark.torch
def test_torch_members(make_machine: Make) -> None:
    """Seeding and inference mode are torch's own, and the torch device has no number."""
    torch = pytest.importorskip("torch")
    platform = platform_of(make_machine())
    platform.manual_seed_all(7)
    first = torch.rand(3)
    platform.manual_seed_all(7)
    assert torch.equal(first, torch.rand(3))
    with platform.inference_mode():
        assert torch.is_inference_mode_enabled()
    assert str(platform.torch_device()) == "cpu"


@pytest.mark.parametrize(("value", "offered"), [(None, False), ("0", False), ("", False), ("1", True), ("True", True)])
def test_triton_is_offered_where_its_interpreter_is_switched_on(
    make_machine: Make, value: str | None, offered: bool
) -> None:
    """Triton's own variable, as the machine has it; the class itself offers it to nobody."""
    machine = make_machine(variables={} if value is None else {"TRITON_INTERPRET": value})
    assert ("triton" in platform_of(machine).torch_features) == offered
    assert "triton" not in CpuPlatform.torch_features
