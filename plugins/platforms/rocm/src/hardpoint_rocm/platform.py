"""`RocmPlatform`: AMD devices under torch's ``cuda``, which is what a torch for ROCm calls them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hardpoint._start_method import has_torch_initialised, memory_held_by_torch
from hardpoint.errors import EnvironmentFailure
from hardpoint.platforms import BackendPriority, Platform
from hardpoint_rocm._traces import is_wsl

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from hardpoint import DeviceCapability
    from hardpoint._start_method import StartMethod
    from hardpoint.attention import AttentionConfig
    from hardpoint_rocm._links import Link


class RocmPlatform(Platform):
    """AMD devices, numbered as HIP numbers them under the masks.

    What is said of devices is as it was at resolution. Only `set_device` and what computes initialise anything; memory
    in use and links are read from the kernel's files each time.
    """

    own_members = frozenset(("are_xgmi_peers",))
    device_control_env_vars: ClassVar[tuple[str, ...]] = (
        "HIP_VISIBLE_DEVICES",
        "CUDA_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
    )
    ray_device_key: ClassVar[str | None] = "GPU"
    # torch calls RCCL by the name of what it stands in for.
    dist_backend: ClassVar[str | None] = "nccl"
    torch_features: ClassVar[frozenset[str]] = frozenset(("aten", "sdpa", "compile", "triton"))

    @property
    def name(self) -> str:
        """``rocm``."""
        return "rocm"

    @property
    def vendor(self) -> str:
        """``AMD``."""
        return "AMD"

    @property
    def device_type(self) -> str:
        """``cuda``, as in ``torch.device("cuda:0")``: a torch for ROCm has no other name for it."""
        return "cuda"

    @property
    def dispatch_key(self) -> str:
        """``CUDA``, under which a torch for ROCm registers its operators."""
        return "CUDA"

    def _device_module(self) -> ModuleType:
        """``torch.cuda``. Errors: `EnvironmentFailure` for a build without HIP."""
        import torch

        if torch.version.hip is None:
            raise EnvironmentFailure(
                f"torch {torch.__version__} is not built for ROCm",
                code="other_build",
                remedy="install a torch wheel for ROCm",
            )
        return torch.cuda

    def get_device_total_memory(self, index: int = 0) -> int | None:
        """Bytes of memory that the device may use; None: unknown.

        Where detection did not find out and torch has initialised HIP, torch is asked.
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
        """Bytes in use on the device, by all processes; where the kernel does not count them, what torch holds here.

        None: neither knows. The kernel counts whole cards, not the parts of a divided one. Initialises nothing.
        """
        from hardpoint._pci import read_attribute

        device = self.device(index)
        if device.properties.get("compute_partition") in (None, "SPX"):
            used = read_attribute(self.machine, device.pci_bus_id, "mem_info_vram_used", limit=64)
            if used is not None and used.isascii() and used.isdigit() and len(used) < 20:
                return int(used)
        return memory_held_by_torch(self._device_module, index) if self.machine.live else None

    def _is_torch_initialised(self) -> bool:
        """Whether torch has initialised HIP here. Imports nothing."""
        return self.machine.live and has_torch_initialised()

    def is_pin_memory_available(self) -> bool:
        """True; on WSL False: page-locked memory is scarce there, and an engine that fills it makes others fail."""
        return not is_wsl(self.machine)

    @property
    def supported_dtypes(self) -> tuple[str, ...]:
        """What every visible device computes in; ``float32`` is all that is certain of an unknown one."""
        shared = self._shared_features()
        wanted = (("bfloat16", "bf16"), ("float16", "fp16"))
        return (*(dtype for dtype, feature in wanted if feature in shared), "float32", "float64")

    def fp8_dtype(self) -> str:
        """``float8_e4m3fnuz`` on CDNA3, the only generation that has that encoding, else ``float8_e4m3fn``."""
        return "float8_e4m3fnuz" if "fp8_fnuz" in self._shared_features() else "float8_e4m3fn"

    def supports_fp8(self) -> bool:
        """Whether every device computes in 8-bit floating point, and all in the same encoding of it."""
        shared = self._shared_features()
        return "fp8" in shared and ("fp8_fnuz" in shared or "fp8_ocp" in shared)

    def _shared_features(self) -> frozenset[str]:
        features = [device.capability.features if device.capability else frozenset() for device in self.devices]
        return frozenset.intersection(*features) if features else frozenset()

    def backend_priorities(
        self, device_capability: DeviceCapability | None, config: AttentionConfig
    ) -> Sequence[BackendPriority]:
        """By architecture: AMD's own kernels where there are some, then Triton, what compiles, and torch's own."""
        from hardpoint_rocm._priorities import priorities

        return priorities(device_capability, config)

    def supports_graph_capture(self) -> bool:
        """True: HIP graphs."""
        return True

    def recommended_start_method(self) -> StartMethod:
        """``fork`` or ``spawn`` for an engine's workers, with the reason. A fork after initialisation cannot use HIP.

        Asks anew each time; initialises nothing.
        """
        from hardpoint_rocm._start_method import recommend

        return recommend(self.machine)

    def get_device_cpu_affinity(self, index: int = 0) -> frozenset[int] | None:
        """The CPUs nearest to the device that this process may use; None: the kernel does not say, or none is."""
        from hardpoint._pci import nearby_cpus

        return nearby_cpus(self.machine, self.device(index).pci_bus_id)

    def are_peers(self, index: int, other: int) -> bool | None:
        """Whether two devices read and write each other's memory directly, as the kernel says; None: unknown."""
        if self.device(index) is self.device(other):
            return True
        link = self._link(index, other)
        return link if link is None or isinstance(link, bool) else link.allows_access

    def are_xgmi_peers(self, index: int, other: int) -> bool | None:
        """Whether XGMI connects two devices directly; None: unknown."""
        if self.device(index) is self.device(other):
            return False
        link = self._link(index, other)
        return link if link is None or isinstance(link, bool) else link.is_xgmi

    def _link(self, index: int, other: int) -> Link | bool | None:
        """The link; False: there is none; True: all that is known is that XGMI connects them; None: unknown."""
        from hardpoint_rocm._links import read_links

        one, two = (self.device(number).properties for number in (index, other))
        start, end = one.get("kfd_node"), two.get("kfd_node")
        if isinstance(start, int) and isinstance(end, int):
            links = read_links(self.machine, start)
            if links is not None:
                return links.get(end, False)
        hive = one.get("xgmi_hive")
        return True if hive is not None and hive == two.get("xgmi_hive") else None
