"""`CpuPlatform`: the CPU, as much of it as this process may use."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hardpoint.platforms import BackendPriority, Platform
from hardpoint_cpu._architecture import ARM
from hardpoint_cpu._cpu_list import parse_cpu_list
from hardpoint_cpu._topology import NumaNode, read_cores, read_numa_nodes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hardpoint import DeviceCapability, KernelModule
    from hardpoint._machine import Machine
    from hardpoint.attention import AttentionConfig
    from hardpoint.hookspecs import Device
    from hardpoint_cpu._division import CoreShare

# A process that resolves its platform imports this module: what only later questions need is imported with them.


class CpuPlatform(Platform):
    """One device, number 0: torch's ``cpu``.

    What it may use of the machine (`cpu_affinity`, `usable_cpus`, memory) is as it was at resolution. Nothing here
    initialises anything: a CPU has no context. Thread-safe, and usable after a fork.
    """

    # A CPU is masked with affinity and cgroups, which no variable names.
    device_control_env_vars: ClassVar[tuple[str, ...]] = ()
    own_members = frozenset(
        (
            "cpu_affinity",
            "numa_nodes",
            "partition_cores",
            "recommended_threads",
            "usable_cpus",
        )
    )
    ray_device_key: ClassVar[str | None] = "CPU"
    dist_backend: ClassVar[str | None] = "gloo"
    torch_features: ClassVar[frozenset[str]] = frozenset(("aten", "sdpa", "compile"))

    def __init__(self, machine: Machine, devices: Sequence[Device]) -> None:
        super().__init__(machine, devices)
        # Triton has no driver for a CPU; its interpreter needs none, and its own variable switches it on.
        if (machine.variable("TRITON_INTERPRET") or "").strip().lower() in ("1", "true", "yes", "on", "y"):
            self.torch_features = self.torch_features | {"triton"}  # type: ignore[misc]  # this machine's, not the class's

    @property
    def name(self) -> str:
        """``cpu``."""
        return "cpu"

    @property
    def vendor(self) -> str:
        """Who makes the CPU (``Intel``, ``AMD``, ``Arm``, ``Apple``); ``unknown`` where it does not say."""
        return str(self.device().properties.get("vendor") or "unknown")

    @property
    def device_type(self) -> str:
        """``cpu``, as in ``torch.device("cpu")``."""
        return "cpu"

    @property
    def dispatch_key(self) -> str:
        """``CPU``."""
        return "CPU"

    def set_device(self, index: int = 0) -> None:
        """Nothing to do: there is one. Errors: `ConfigError` for any other."""
        self.device(index)

    def synchronize(self, index: int = 0) -> None:
        """Nothing to wait for: an operator has finished when it returns."""
        self.device(index)

    def empty_cache(self) -> None:
        """Nothing to give back: torch keeps no cache of CPU memory."""

    def manual_seed_all(self, seed: int) -> None:
        """Seed torch's CPU generator. Imports torch."""
        import torch

        torch.manual_seed(seed)

    def get_current_memory_usage(self, index: int = 0) -> int | None:
        """Bytes of memory that this process has resident; None where the system does not say."""
        self.device(index)
        try:
            status = self.machine.read_text("/proc/self/status")
        except OSError:
            return None
        for line in status.splitlines():
            words = line.split()
            # A line reads "VmRSS:      1234 kB".
            if len(words) >= 2 and words[0] == "VmRSS:" and words[1].isascii() and words[1].isdigit():
                return int(words[1]) * 1024
        return None

    @property
    def supported_dtypes(self) -> tuple[str, ...]:
        """What torch computes in here. Where the CPU multiplies in bfloat16 (feature ``bf16``), that is the default.

        Elsewhere each operation would convert to float32 and back, so float32 is. Apple's CPUs without the instructions
        are not offered bfloat16 at all.
        """
        capability = self.device().capability
        if capability is not None and "bf16" in capability.features:
            return ("bfloat16", "float16", "float32", "float64")
        if self.machine.system == "Darwin" and self.device().properties.get("family") == ARM:
            return ("float32", "float16", "float64")
        return ("float32", "bfloat16", "float16", "float64")

    def kernel_modules(self) -> Sequence[KernelModule]:
        """The modules of ``hardpoint-cpu-native``, widest first; the first of their group that imports is taken."""
        from hardpoint_cpu._kernel_modules import kernel_modules

        return kernel_modules(self.device())

    def backend_priorities(
        self, device_capability: DeviceCapability | None, config: AttentionConfig
    ) -> Sequence[BackendPriority]:
        """Native kernels, then torch's, then compiled ones."""
        from hardpoint_cpu._priorities import priorities

        return priorities(config)

    @property
    def cpu_affinity(self) -> frozenset[int] | None:
        """The CPUs that threads of this process may run on; None where the system does not say (macOS, Windows)."""
        cpus = self.device().properties.get("cpus")
        return parse_cpu_list(cpus) or None if isinstance(cpus, str) else None

    def get_device_cpu_affinity(self, index: int = 0) -> frozenset[int] | None:
        """The same as `cpu_affinity`."""
        self.device(index)
        return self.cpu_affinity

    @property
    def usable_cpus(self) -> int:
        """How many CPUs may work for this process at once, under its affinity mask and its quota; at least 1."""
        count = self.device().properties.get("usable_cpus")
        return count if isinstance(count, int) and count > 0 else 1

    def numa_nodes(self) -> tuple[NumaNode, ...]:
        """The memory nodes with usable CPUs; none where the system does not say. Reads the machine each time."""
        return read_numa_nodes(self.machine, self.cpu_affinity)

    def recommended_threads(self) -> int:
        """How many threads an engine should compute with.

        One per physical core, within `usable_cpus`: the hardware threads of a core share its vector units. A valid
        ``OMP_NUM_THREADS`` is the user's own choice, and is the answer.
        """
        chosen = (self.machine.variable("OMP_NUM_THREADS") or "").split(",")[0].strip()
        if chosen.isascii() and chosen.isdigit() and len(chosen) < 6 and int(chosen) > 0:
            return int(chosen)
        affinity = self.cpu_affinity
        return self.usable_cpus if affinity is None else min(self.usable_cpus, len(read_cores(self.machine, affinity)))

    def partition_cores(self, num_ranks: int) -> tuple[CoreShare, ...]:
        """Divide CPUs and threads between the processes of one engine on this machine, by NUMA node.

        No CPU is given twice, and each is in the affinity mask. Where the system does not say which CPUs may be used,
        there is nothing to bind to and only the threads are divided. Errors: `ConfigError` for more ranks than CPUs.
        """
        from hardpoint_cpu._division import CoreShare, divide

        affinity = self.cpu_affinity
        if affinity is None:
            # Numbers stand in for CPUs, to be counted and forgotten.
            shares = divide(num_ranks, [(None, [(cpu,) for cpu in range(self.usable_cpus)])], self.usable_cpus)
            return tuple(CoreShare(cpus=None, threads=share.threads) for share in shares)
        nodes: list[tuple[int | None, frozenset[int]]] = [(node.id, node.cpus) for node in self.numa_nodes()]
        elsewhere = affinity.difference(*(cpus for _, cpus in nodes))
        if elsewhere:
            nodes.append((None, elsewhere))
        return divide(num_ranks, [(node, read_cores(self.machine, cpus)) for node, cpus in nodes], self.usable_cpus)
