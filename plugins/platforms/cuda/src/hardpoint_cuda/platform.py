"""`CudaPlatform`: NVIDIA devices under torch's ``cuda``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Final

from hardpoint._start_method import has_torch_initialised, memory_held_by_torch
from hardpoint.errors import EnvironmentFailure
from hardpoint.platforms import BackendPriority, Platform
from hardpoint_cuda._traces import PIN_MEMORY_ON_WSL, is_wsl

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from hardpoint import DeviceCapability
    from hardpoint._machine import Json
    from hardpoint._start_method import StartMethod
    from hardpoint.attention import AttentionConfig

_PINS_SINCE: Final = (4, 19, 121)


class CudaPlatform(Platform):
    """NVIDIA devices, numbered as CUDA numbers them under the mask.

    What is said of devices is as it was at resolution, from NVML. Only `set_device` and what computes initialise
    anything; memory in use and peers are asked of NVML each time, which creates no context.
    """

    device_control_env_vars: ClassVar[tuple[str, ...]] = ("CUDA_VISIBLE_DEVICES",)
    own_members = frozenset(("are_nvlink_peers",))
    ray_device_key: ClassVar[str | None] = "GPU"
    dist_backend: ClassVar[str | None] = "nccl"
    torch_features: ClassVar[frozenset[str]] = frozenset(("aten", "sdpa", "compile", "triton"))

    @property
    def name(self) -> str:
        """``cuda``."""
        return "cuda"

    @property
    def vendor(self) -> str:
        """``NVIDIA``."""
        return "NVIDIA"

    @property
    def device_type(self) -> str:
        """``cuda``, as in ``torch.device("cuda:0")``."""
        return "cuda"

    @property
    def dispatch_key(self) -> str:
        """``CUDA``."""
        return "CUDA"

    def _device_module(self) -> ModuleType:
        """``torch.cuda``. Errors: `EnvironmentFailure` for a build without CUDA, where it raises AssertionError."""
        import torch

        if torch.version.cuda is None:
            raise EnvironmentFailure(
                f"torch {torch.__version__} is not built for CUDA",
                code="other_build",
                remedy="install a torch wheel for CUDA",
            )
        return torch.cuda

    def get_device_total_memory(self, index: int = 0) -> int | None:
        """Bytes of memory that the device may use: the machine's where it shares that; None: unknown.

        Where detection did not find out and torch has initialised CUDA, torch is asked.
        """
        known = self.device(index).total_memory_bytes
        if known is not None or not self._is_torch_initialised():
            return known
        try:
            return int(self._device_module().get_device_properties(index).total_memory) or None
        except (RuntimeError, AssertionError):
            # The device has gone, or the mask has changed under torch.
            return None

    def get_current_memory_usage(self, index: int = 0) -> int | None:
        """Bytes in use on the device, by all processes; where NVML does not count them, what torch holds here.

        None: neither knows. Initialises nothing.
        """
        device = self.device(index)
        if device.uuid is not None:
            used = self._ask_nvml(f"cuda.memory.{device.uuid}", "read_memory_used", device.uuid)
            if type(used) is int and used >= 0:
                return used
        return memory_held_by_torch(self._device_module, index) if self.machine.live else None

    def _is_torch_initialised(self) -> bool:
        """Whether torch has initialised CUDA here. Imports nothing."""
        return self.machine.live and has_torch_initialised()

    def _ask_nvml(self, key: str, function: str, *arguments: str) -> Json:
        """The answer; None where NVML fails, or has gone since the start."""
        try:
            return self.machine.probe(key, f"hardpoint_cuda._nvml:{function}", arguments=arguments)
        except (ImportError, OSError):
            return None

    def is_pin_memory_available(self) -> bool:
        """True; on WSL only where the kernel can and ``HARDPOINT_CUDA_PIN_MEMORY_ON_WSL=1`` asks for it.

        There page-locked memory is scarce, and an engine that fills it makes later allocations fail.
        """
        if not is_wsl(self.machine):
            return True
        wanted = (self.machine.variable(PIN_MEMORY_ON_WSL) or "").strip().lower()
        found = re.match(r"(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?", self.machine.kernel_release, re.ASCII)
        version = tuple(int(part or 0) for part in found.groups()) if found else (0, 0, 0)
        return wanted in ("1", "true", "yes", "on") and version >= _PINS_SINCE

    @property
    def supported_dtypes(self) -> tuple[str, ...]:
        """What every visible device computes in; ``float32`` is all that is certain of an unknown one."""
        features = [device.capability.features if device.capability else frozenset() for device in self.devices]
        shared = frozenset.intersection(*features) if features else frozenset()
        wanted = (("bfloat16", "bf16"), ("float16", "fp16"))
        return (*(dtype for dtype, feature in wanted if feature in shared), "float32", "float64")

    def backend_priorities(
        self, device_capability: DeviceCapability | None, config: AttentionConfig
    ) -> Sequence[BackendPriority]:
        """By compute capability: tuned kernels, then Triton, then what compiles, then torch's own."""
        from hardpoint_cuda._priorities import priorities

        return priorities(device_capability, config)

    def supports_graph_capture(self) -> bool:
        """True: CUDA graphs."""
        return True

    def recommended_start_method(self) -> StartMethod:
        """``fork`` or ``spawn`` for an engine's workers, with the reason. A fork after initialisation cannot use CUDA.

        It sees also what was initialised behind torch's back. Asks anew each time; initialises nothing.
        """
        from hardpoint_cuda._start_method import recommend

        return recommend(self.machine)

    def get_device_cpu_affinity(self, index: int = 0) -> frozenset[int] | None:
        """The CPUs nearest to the device that this process may use; None: the kernel does not say, or none is."""
        from hardpoint._pci import nearby_cpus

        return nearby_cpus(self.machine, self.device(index).pci_bus_id)

    def are_peers(self, index: int, other: int) -> bool | None:
        """Whether two devices read and write each other's memory directly, as NVML says; None: unknown."""
        return self._peer(index, other, "access")

    def are_nvlink_peers(self, index: int, other: int) -> bool | None:
        """Whether NVLink connects two devices; None: unknown."""
        return self._peer(index, other, "nvlink")

    def _peer(self, index: int, other: int, what: str) -> bool | None:
        one, two = self.device(index), self.device(other)
        if one.uuid is None or two.uuid is None or one.properties.get("mig_parent") or two.properties.get("mig_parent"):
            return None
        if index == other:
            return what == "access"
        answer = self._ask_nvml(f"cuda.peers.{one.uuid}.{two.uuid}", "read_peers", one.uuid, two.uuid)
        found = answer.get(what) if isinstance(answer, dict) else None
        return found if isinstance(found, bool) else None
