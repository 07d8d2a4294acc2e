"""`NeuronPlatform`: AWS's NeuronCores under torch, through either of the two distributions called torch-neuronx."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from hardpoint._importing import import_library
from hardpoint.errors import EnvironmentFailure
from hardpoint.platforms import BackendPriority, Platform
from hardpoint_neuron._mask import parse_cores
from hardpoint_neuron._torch_front import MODULE, REMEDY, front_of
from hardpoint_neuron._traces import TORCH, VISIBLE_CORES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from hardpoint import DeviceCapability, Machine
    from hardpoint.attention import AttentionConfig
    from hardpoint.hookspecs import Device

_DTYPES: Final = (("bfloat16", "bf16"), ("float16", "fp16"))


class NeuronPlatform(Platform):
    """NeuronCores: each device is one logical core, not one chip.

    Building it imports ``torch_neuronx``, on a live machine; that initialises no core, and nothing here does but
    `set_device`, `synchronize` and what computes. What is said of devices is as it was at resolution.
    """

    device_control_env_vars: ClassVar[tuple[str, ...]] = (VISIBLE_CORES,)
    ray_device_key: ClassVar[str | None] = "neuron_cores"
    # What torch computes in op by op here is for debugging: a model is compiled as a whole.
    torch_features: ClassVar[frozenset[str]] = frozenset()
    attention_note: ClassVar[str | None] = (
        "attention lives in the compiled graph: Neuron's compiler builds it together with the model"
    )

    def __init__(self, machine: Machine, devices: Sequence[Device]) -> None:
        """Errors: `EnvironmentFailure` where torch-neuronx is not installed or does not load."""
        super().__init__(machine, devices)
        self._front = front_of(machine.distribution_version(TORCH), [_core_version(device) for device in devices])
        if machine.live:
            _import_torch_neuronx()

    @property
    def name(self) -> str:
        """``neuron``."""
        return "neuron"

    @property
    def vendor(self) -> str:
        """``AWS``."""
        return "AWS"

    @property
    def device_type(self) -> str:
        """``neuron``, or ``xla`` with a torch-neuronx below 2.13."""
        return self._front.device_type

    @property
    def dispatch_key(self) -> str:
        """``PrivateUse1``, or ``XLA`` with a torch-neuronx below 2.13."""
        return self._front.dispatch_key

    @property
    def dist_backend(self) -> str:  # type: ignore[override]  # two distributions of one name, each with its own
        """``neuron``, or ``xla`` with a torch-neuronx below 2.13."""
        return self._front.dist_backend

    @property
    def _is_xla(self) -> bool:
        return self._front.device_type == "xla"

    def _device_module(self) -> ModuleType:
        """``torch.neuron``. Errors: `EnvironmentFailure` where torch has no such device."""
        import torch

        try:
            module: ModuleType = torch.get_device_module(self.device_type)
        except (RuntimeError, AttributeError) as error:
            raise EnvironmentFailure(
                f"torch {torch.__version__} has no device {self.device_type!r}", code="other_build", remedy=REMEDY
            ) from error
        return module

    def set_device(self, index: int = 0) -> None:
        """Make the core this thread's current one. Nothing to do with torch-xla, which addresses cores by name."""
        self.device(index)
        if not self._is_xla:
            super().set_device(index)

    def synchronize(self, index: int = 0) -> None:
        """Wait for all work on the core; with torch-xla, which cannot wait for one, on all of this process."""
        self.device(index)
        if self._is_xla:
            _xla_model().wait_device_ops()
        else:
            super().synchronize(index)

    def empty_cache(self) -> None:
        """Give cached device memory back; torch-xla keeps none that it could give."""
        if not self._is_xla:
            super().empty_cache()

    def manual_seed_all(self, seed: int) -> None:
        """Seed torch's generators, the host's too: graphs draw from it while they are traced."""
        import torch

        torch.manual_seed(seed)
        if self._is_xla:
            _xla_model().set_rng_state(seed)
        else:
            super().manual_seed_all(seed)

    def is_pin_memory_available(self) -> bool:
        """False: the runtime copies from its own buffers, and page-locked memory of torch is CUDA's."""
        return False

    def get_current_memory_usage(self, index: int = 0) -> int | None:
        """Bytes in use on the core by all processes, as the driver counts them; None: it does not say.

        Read from sysfs each time: it opens no device.
        """
        from hardpoint_neuron._sysfs import memory_in_use

        properties = self.device(index).properties
        chip, cores = properties.get("neuron_device"), properties.get("physical_cores")
        if type(chip) is not int or not isinstance(cores, str):
            return None
        used = [memory_in_use(self.machine, chip, core) for core in parse_cores(cores).numbers()]
        known = [size for size in used if size is not None]
        return sum(known) if known and len(known) == len(used) else None

    @property
    def supported_dtypes(self) -> tuple[str, ...]:
        """What every core computes in; ``float32`` is all that is certain of an unknown one."""
        features = [device.capability.features if device.capability else frozenset() for device in self.devices]
        shared = frozenset.intersection(*features) if features else frozenset()
        return (*(dtype for dtype, feature in _DTYPES if feature in shared), "float32")

    def fp8_dtype(self) -> str:
        """``float8_e4m3fn`` is what torch has for it. The cores' own format of that shape ends at 240, not at 448."""
        return "float8_e4m3fn"

    def backend_priorities(
        self, device_capability: DeviceCapability | None, config: AttentionConfig
    ) -> Sequence[BackendPriority]:
        """None: see `attention_note`."""
        return ()

    def get_device_cpu_affinity(self, index: int = 0) -> frozenset[int] | None:
        """The CPUs nearest to the chip that this process may use; None: neuron-ls does not say, or none is."""
        text = self.device(index).properties.get("cpus")
        if not isinstance(text, str):
            return None
        near = frozenset(parse_cores(text).numbers())
        usable = self.machine.cpu_affinity()
        return (near if usable is None else near & usable) or None

    def are_peers(self, index: int, other: int) -> bool | None:
        """Whether two cores are on one chip or on chips with a direct link; None: unknown."""
        one, two = self.device(index).properties, self.device(other).properties
        first, second = one.get("neuron_device"), two.get("neuron_device")
        if type(first) is not int or type(second) is not int:
            return None
        if first == second:
            return True
        known = [
            peer in parse_cores(links).numbers()
            for links, peer in ((one.get("connected_devices"), second), (two.get("connected_devices"), first))
            if isinstance(links, str)
        ]
        return any(known) if known else None


def _core_version(device: Device) -> int | None:
    features = frozenset() if device.capability is None else device.capability.features
    found = [name.removeprefix("neuroncore_v") for name in features if name.startswith("neuroncore_v")]
    return int(found[0]) if len(found) == 1 and found[0].isascii() and found[0].isdigit() else None


def _import_torch_neuronx() -> None:
    try:
        import_library(MODULE, remedy=REMEDY)
    except ModuleNotFoundError as error:
        if error.name != MODULE:
            raise
        raise EnvironmentFailure(
            f"{TORCH} is not installed, and torch reaches Neuron cores only through it",
            code="missing_dependency",
            remedy=REMEDY,
        ) from error


def _xla_model() -> ModuleType:
    return import_library("torch_xla.core.xla_model", remedy=REMEDY)
