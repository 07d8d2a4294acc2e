"""The platform contract: what a platform class offers to an engine.

`Platform` is an ordinary object built from a machine and a list of devices, so that a simulated one is as real as a
detected one. Every public member is marked in its docstring: *Required* (abstract), *Recommended* (has a default that
a vendor will want to replace), *Optional*, or *Final* (not for overriding). Unknown is None. A member that does not
exist raises `AttributeError`, as everywhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn

from hardpoint.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import ModuleType

    import torch

    from hardpoint._capability import DeviceCapability
    from hardpoint._evaluation import Depth
    from hardpoint._kernels import KernelModule, KernelReport, KernelState
    from hardpoint._machine import Machine
    from hardpoint._plugins import Registry
    from hardpoint._reasons import Candidate, Provenance
    from hardpoint._selection import Selection
    from hardpoint._settings import Settings
    from hardpoint._start_method import StartMethod
    from hardpoint.attention import AttentionConfig
    from hardpoint.hookspecs import Device


class BackendPriority(NamedTuple):
    """One line of a platform's order: a backend's name, why it stands here, and which distribution brings it."""

    name: str
    reason: str
    distribution: str | None = None


class Platform(ABC):
    """One kind of accelerator runtime, on this machine, with these devices.

    Building one initialises nothing. Thread-safe; survives fork as long as nothing has initialised the device.
    """

    device_control_env_vars: ClassVar[tuple[str, ...]] = ()
    """*Recommended.* Environment variables that choose which devices are visible, strongest first."""
    ray_device_key: ClassVar[str | None] = None
    """*Optional.* The resource name that Ray counts these devices under."""
    dist_backend: ClassVar[str | None] = None
    """*Optional.* The ``torch.distributed`` backend (``nccl``, ``gloo``)."""
    torch_features: ClassVar[frozenset[str]] = frozenset()
    """*Recommended.* What this torch device offers to generic backends (``BackendSpec.platforms = ("torch-device",)``):
    such a backend runs here if all its `torch_features` are in this set, and never if the set is empty. ``aten``: the
    usual tensor operators; ``sdpa``: scaled_dot_product_attention; ``compile``: torch.compile has a code generator;
    ``triton``: Triton compiles for it."""
    attention_note: ClassVar[str | None] = None
    """*Optional.* Why this platform has no selectable attention backend at all: attention lives inside a compiled
    graph. None: it has them."""

    own_members: ClassVar[frozenset[str]] = frozenset()
    """*Optional.* Public members beyond this contract, for who knows this very platform. Any other is reported as a
    hook that nobody calls."""

    def __init__(self, machine: Machine, devices: Sequence[Device]) -> None:
        from hardpoint._selection_cache import SelectionCache

        self._machine = machine
        self._devices = tuple(devices)
        self._selections = SelectionCache()
        self._registry: Registry | None = None
        self._settings: Settings | None = None
        self._provenance: Provenance | None = None

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"platform {self.name!r} belongs to its process and is neither pickled nor copied; in the other one call "
            f"hardpoint.current_platform(), or hardpoint.platform({self.name!r})"
        )

    def _attach(self, registry: Registry, settings: Settings, provenance: Provenance) -> None:
        """Called once by the resolution: the plugins and settings that this platform decides with, frozen."""
        self._registry = registry
        self._settings = settings
        self._provenance = provenance

    @property
    def _is_initialised(self) -> bool:
        """Whether a subclass has called ``super().__init__``."""
        return hasattr(self, "_selections")

    @property
    @abstractmethod
    def name(self) -> str:
        """*Required.* The registry name, equal to the entry point's."""

    @property
    @abstractmethod
    def vendor(self) -> str:
        """*Required.* Who makes the devices (``NVIDIA``)."""

    @property
    @abstractmethod
    def device_type(self) -> str:
        """*Required.* The torch device type: what goes into ``torch.device(…)``."""

    @property
    @abstractmethod
    def dispatch_key(self) -> str:
        """*Required.* torch's dispatch key (``CUDA``, ``CPU``, ``PrivateUse1``)."""

    @property
    def machine(self) -> Machine:
        """*Final.* The machine that this platform was built for."""
        return self._machine

    @property
    def devices(self) -> tuple[Device, ...]:
        """*Final.* The devices in logical order, as they were at resolution."""
        return self._devices

    def device_count(self) -> int:
        """*Final.* How many devices this process may use."""
        return len(self._devices)

    def device(self, index: int = 0) -> Device:
        """*Final.* One device by logical index. Errors: `ConfigError` where there is none of that number."""
        if type(index) is not int or not 0 <= index < len(self._devices):
            raise ConfigError(
                f"{self.name} has no device {index!r}: it has {len(self._devices)}, numbered from 0", field="device"
            )
        return self._devices[index]

    def get_device_capability(self, index: int = 0) -> DeviceCapability | None:
        """*Final.* What the device can do; None: unknown. Does not initialise the device."""
        return self.device(index).capability

    def get_device_name(self, index: int = 0) -> str:
        """*Final.* The device's market name."""
        return self.device(index).name

    def get_device_uuid(self, index: int = 0) -> str | None:
        """*Final.* The device's unique id; None: unknown."""
        return self.device(index).uuid

    def get_device_total_memory(self, index: int = 0) -> int | None:
        """*Recommended.* Bytes of memory that the device may use; None: unknown."""
        return self.device(index).total_memory_bytes

    def physical_device_id(self, index: int = 0) -> int | str | None:
        """*Final.* The machine's own number or id of the logical device; None: unknown."""
        return self.device(index).physical_id

    def visible_device_id(self, index: int = 0) -> str | None:
        """*Final.* How the visibility mask names the logical device; None where no mask is set."""
        return self.device(index).visible_id

    def register_torch_device(self) -> None:
        """*Optional.* Make torch know `device_type` where it does not by itself: PrivateUse1, under a vendor's name.

        Called before anything here hands `device_type` to torch, and before a backend's `prepare`. Imports torch; may
        be called often, in any thread; does not initialise the device. Errors: `EnvironmentFailure`.
        """

    def _device_module(self) -> ModuleType:
        """The torch module for the device type (``torch.cuda``). Imports torch."""
        self.register_torch_device()
        import torch

        module: ModuleType = torch.get_device_module(self.device_type)
        return module

    def set_device(self, index: int = 0) -> None:
        """*Recommended.* Make the device this thread's current one. May initialise it."""
        self.device(index)
        self._device_module().set_device(index)

    def synchronize(self, index: int = 0) -> None:
        """*Recommended.* Wait for all work on the device. May initialise it."""
        self.device(index)
        self._device_module().synchronize(index)

    def empty_cache(self) -> None:
        """*Recommended.* Give cached device memory back, where the runtime caches any."""
        release: Callable[[], None] | None = getattr(self._device_module(), "empty_cache", None)
        if release is not None:
            release()

    def manual_seed_all(self, seed: int) -> None:
        """*Recommended.* Seed the generators of every device of this platform."""
        import torch

        seed_all: Callable[[int], object] = getattr(self._device_module(), "manual_seed_all", torch.manual_seed)
        seed_all(seed)

    def inference_mode(self) -> AbstractContextManager[object]:
        """*Recommended.* A context in which nothing is recorded for gradients."""
        import torch

        return torch.inference_mode()

    def get_current_memory_usage(self, index: int = 0) -> int | None:
        """*Recommended.* Bytes in use on the device; None: unknown. A query: it empties no cache, resets no counter."""
        self.device(index)
        return None

    def is_pin_memory_available(self) -> bool:
        """*Recommended.* Whether page-locked host memory helps copies to this platform's devices."""
        return False

    @property
    @abstractmethod
    def supported_dtypes(self) -> tuple[str, ...]:
        """*Required.* Model dtypes that all visible devices compute in, by torch name; the first is the default."""

    def check_if_supports_dtype(self, dtype: object) -> None:
        """*Recommended.* Errors: `ConfigError` that says which dtypes are supported."""
        from hardpoint.attention import normalise_dtype

        name = normalise_dtype(dtype)
        if name not in self.supported_dtypes:
            raise ConfigError(
                f"{self.name} does not support {name} here; supported are {', '.join(self.supported_dtypes)}",
                field="dtype",
            )

    def supports_fp8(self) -> bool:
        """*Recommended.* Whether every device has the feature ``fp8``; False where a capability is unknown."""
        known = [device.capability for device in self._devices]
        return bool(known) and all(item is not None and "fp8" in item.features for item in known)

    def fp8_dtype(self) -> str:
        """*Recommended.* The 8-bit floating point format that the devices compute in, by torch name."""
        return "float8_e4m3fn"

    def kernel_modules(self) -> Sequence[KernelModule]:
        """*Recommended.* The native modules for `import_kernels`, in order. Asks the machine; imports nothing."""
        return ()

    @property
    def _kernel_state(self) -> KernelState:
        found: KernelState | None = self.__dict__.get("_kernels")
        if found is None:
            from hardpoint._kernels import KernelState

            # One step of the interpreter: of several threads' new states the first is kept.
            found = self.__dict__.setdefault("_kernels", KernelState())
        return found

    def import_kernels(self) -> KernelReport:
        """*Final.* Import the native modules and check the operators that they promise. Once; the result is kept.

        Called by the engine at start-up, and by selections at depth ``ready``. May initialise the device. A required
        module that is absent or broken gives one WARNING and ``report.ok == False``. Errors: `KernelError` in strict
        mode; a programming error in a module's own start-up propagates, with a note.
        """
        return self._kernel_state.run(self)

    @property
    def kernel_report(self) -> KernelReport | None:
        """*Final.* What `import_kernels` found; None while it has not run."""
        state: KernelState | None = self.__dict__.get("_kernels")
        return None if state is None else state.report

    def get_operator(self, module: str, operator: str) -> Callable[..., Any]:  # Any: operators differ
        """*Final.* An operator of a kernel module, which `import_kernels` is run for if need be.

        Errors: `MissingOperatorError`, which repeats why the module is not there.
        """
        return self._kernel_state.operator(self, module, operator)

    @abstractmethod
    def backend_priorities(
        self, device_capability: DeviceCapability | None, config: AttentionConfig
    ) -> Sequence[BackendPriority]:
        """*Required.* The order of the backends known here, best first, for such a device and config, with reasons.

        Backends that it does not name are placed by their own `Order`, then by name. One that it names and that is not
        installed appears in reports as ``not_installed``.
        """

    def get_valid_backends(
        self,
        device_capability: DeviceCapability | Sequence[DeviceCapability | None] | None,
        config: AttentionConfig,
        *,
        depth: Depth | str = "loaded",
    ) -> tuple[list[Candidate], dict[str, Candidate]]:
        """*Final.* Every backend that is valid, in order, and the rejected ones by name with all their reasons.

        With several capabilities a backend must be valid on each, and a reason names the device that refuses. Imports
        the classes that pass their declared support (not at depth ``static``).
        """
        from hardpoint._selecting import valid_backends

        return valid_backends(self, device_capability, config, depth=depth)

    def select_backend(
        self,
        config: AttentionConfig,
        requested: str | Sequence[str] | Selection | None = None,
        devices: Sequence[int] | int | None = None,
        depth: Depth | str = "loaded",
        *,
        strict: bool | None = None,
    ) -> Selection:
        """*Final.* The best backend for a layer kind, with every candidate and why the others were not taken.

        `requested`: a name, names in order of preference (a last ``auto`` opens the automatic order), or the selection
        of the layer whose cache this one shares (same backend and layout, or an error); it beats the
        kind's variable (``HARDPOINT_ATTENTION_BACKEND``). `devices`: logical indices that must all be able to run it
        (default: all of them). Errors: `UnknownBackendError`, `BackendUnavailableError`, `NoBackendError`.
        """
        from hardpoint._selecting import select_backend

        return select_backend(self, config, requested=requested, devices=devices, depth=depth, strict=strict)

    def apply_config_defaults(self, config: object) -> None:
        """*Optional.* Fill in what the user left open in an engine's configuration. Idempotent."""

    def check_and_update_config(self, config: object) -> None:
        """*Optional.* Check an engine's configuration and adapt what must be. Idempotent; raises `ValueError`."""

    def verify_model_arch(self, model_arch: str) -> None:
        """*Optional.* Raise `ValueError` for a model architecture that cannot run here."""

    def verify_quantization(self, quantization: str) -> None:
        """*Optional.* Raise `ValueError` for a quantisation method that cannot run here."""

    def recommended_start_method(self) -> StartMethod:
        """*Optional.* How an engine should start its workers from here, now. Asks anew each time; initialises nothing.

        By default ``spawn``, which is right everywhere.
        """
        from hardpoint._start_method import StartMethod

        return StartMethod("spawn", f"{self.name} does not say that a fork can use its devices")

    def supports_graph_capture(self) -> bool:
        """*Optional.* Whether a step can be captured once and replayed."""
        return False

    def get_device_numa_node(self, index: int = 0) -> int | None:
        """*Optional.* The NUMA node nearest to the device; None: unknown."""
        return self.device(index).numa_node

    def get_device_cpu_affinity(self, index: int = 0) -> frozenset[int] | None:
        """*Optional.* The CPUs nearest to the device that this process may use; None: unknown."""
        self.device(index)
        return None

    def are_peers(self, index: int, other: int) -> bool | None:
        """*Optional.* Whether two devices reach each other's memory directly; None: unknown."""
        self.device(index)
        self.device(other)
        return None

    def describe(self) -> Mapping[str, Any]:  # Any: JSON
        """*Final.* Identity and devices, for the report."""
        return {
            "name": self.name,
            "vendor": self.vendor,
            "device_type": self.device_type,
            "dispatch_key": self.dispatch_key,
            "devices": [device.as_dict() for device in self._devices],
        }

    def device_string(self, index: int = 0) -> str:
        """*Final.* What ``torch.device(…)`` takes: ``cuda:1``; ``cpu`` has one device and no number.

        Needs no torch.
        """
        self.device(index)
        return self.device_type if self.device_type == "cpu" else f"{self.device_type}:{index}"

    def torch_device(self, index: int = 0) -> torch.device:
        """*Final.* ``torch.device`` of a logical device, which torch then knows. Imports torch; initialises nothing."""
        name = self.device_string(index)
        self.register_torch_device()
        import torch

        return torch.device(name)
