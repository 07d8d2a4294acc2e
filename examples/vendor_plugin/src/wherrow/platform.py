"""`WherrowPlatform`: the vendor's devices under torch's ``wherrow``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, ClassVar

from hardpoint import KernelModule, StartMethod
from hardpoint.platforms import BackendPriority, Platform
from wherrow._nodes import VISIBLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hardpoint import DeviceCapability
    from hardpoint.attention import AttentionConfig

DISTRIBUTION = "wherrow-hardpoint"


class WherrowPlatform(Platform):
    """Devices numbered as the mask lists them. Nothing but computing opens one."""

    device_control_env_vars: ClassVar[tuple[str, ...]] = (VISIBLE,)
    torch_features: ClassVar[frozenset[str]] = frozenset(("aten", "sdpa"))

    @property
    def name(self) -> str:
        """The entry point's name."""
        return "wherrow"

    @property
    def vendor(self) -> str:
        """Who makes it."""
        return "Wherrow"

    @property
    def device_type(self) -> str:
        """As in ``torch.device("wherrow:0")``."""
        return "wherrow"

    @property
    def dispatch_key(self) -> str:
        """The key that torch keeps for devices it does not know."""
        return "PrivateUse1"

    def register_torch_device(self) -> None:
        """Give torch's ``PrivateUse1`` our name, once per process."""
        import wherrow.torch_device  # noqa: F401

    def get_current_memory_usage(self, index: int = 0) -> int | None:
        """Bytes that this process has allocated on the device; 0 before it was opened."""
        self.device(index)
        module = sys.modules.get("wherrow.torch_device")
        return 0 if module is None else int(module.memory_allocated(index))

    @property
    def supported_dtypes(self) -> tuple[str, ...]:
        """bfloat16 first where every visible device has it."""
        known = [device.capability for device in self.devices]
        bf16 = all(item is not None and "bf16" in item.features for item in known)
        return ("bfloat16", "float32") if bf16 else ("float32",)

    def kernel_modules(self) -> Sequence[KernelModule]:
        """The module that registers the vendor's own operators with torch."""
        return (
            KernelModule(
                name="wherrow.kernels", required=True, operators=("wherrow::attention",), distribution=DISTRIBUTION
            ),
        )

    def backend_priorities(
        self, device_capability: DeviceCapability | None, config: AttentionConfig
    ) -> Sequence[BackendPriority]:
        """The vendor's kernel; else torch's operators, one by one."""
        return (
            BackendPriority("wherrow_attention", "one kernel that reads the paged cache where it lies", DISTRIBUTION),
            BackendPriority("torch_sdpa", "gathers the cache, then several operators of torch", "hardpoint-torch-sdpa"),
        )

    def recommended_start_method(self) -> StartMethod:
        """``spawn`` once a device is open here: a fork cannot use it."""
        module = sys.modules.get("wherrow.torch_device")
        if module is not None and module.is_initialized():
            return StartMethod("spawn", "a device is open in this process, and does not survive a fork")
        return StartMethod("fork", "no device is open in this process")
