"""The platform contract: what every platform can be asked, and what the base class answers."""

from __future__ import annotations

import inspect
import pickle
import re
from typing import TYPE_CHECKING, Any

import pytest

import hardpoint
from hardpoint import Device, DeviceCapability, InMemoryMachine, KernelModule, Platform
from hardpoint.errors import ConfigError, MissingOperatorError
from tests.plugins import Site, config

if TYPE_CHECKING:
    from collections.abc import Callable

    from hardpoint.platforms import BackendPriority


class Fake(Platform):
    name = "fake"
    vendor = "Nobody"
    device_type = "cpu"
    dispatch_key = "CPU"
    supported_dtypes = ("bfloat16", "float32")

    def backend_priorities(
        self, device_capability: DeviceCapability | None, config: hardpoint.AttentionConfig
    ) -> list[BackendPriority]:
        return []


def fake(*features: str) -> Fake:
    """A platform with two devices on a machine in memory."""
    capability = DeviceCapability.parse("9.0", runtime="fake", features=frozenset(features))
    devices = [
        Device(index=0, name="One", capability=capability, physical_id=4, visible_id="GPU-4", uuid="u4", numa_node=1),
        Device(index=1, name="Two", capability=capability, physical_id=2, total_memory_bytes=1 << 30),
    ]
    return Fake(InMemoryMachine(), devices)


def test_every_public_member_is_marked() -> None:
    """Required, recommended, optional or final: a vendor sees what to write."""
    for name, member in vars(Platform).items():
        if name.startswith("_") or not (inspect.isfunction(member) or isinstance(member, property)):
            continue
        marked = re.match(r"\*(Required|Recommended|Optional|Final)\.\*", inspect.getdoc(member) or "")
        assert marked, name
        function = member.fget if isinstance(member, property) else member
        assert (marked[1] == "Required") == getattr(function, "__isabstractmethod__", False), name


def test_the_inventory_is_that_of_the_devices() -> None:
    """Logical, visible and physical numbers are kept apart; unknown is None."""
    platform = fake()
    assert platform.device_count() == 2
    assert platform.get_device_name(1) == "Two"
    assert (platform.physical_device_id(0), platform.visible_device_id(0), platform.get_device_uuid(0)) == (
        4,
        "GPU-4",
        "u4",
    )
    assert (platform.visible_device_id(1), platform.get_device_uuid(1)) == (None, None)
    assert (platform.get_device_total_memory(0), platform.get_device_total_memory(1)) == (None, 1 << 30)
    assert str(platform.get_device_capability(1)) == "9.0"
    assert platform.get_device_numa_node(0) == 1
    assert platform.get_device_cpu_affinity(0) is None
    assert platform.are_peers(0, 1) is None
    assert platform.get_current_memory_usage(0) is None


@pytest.mark.parametrize("index", [2, -1, True, "0", None, 0.0])
def test_a_device_that_is_not_there_is_a_clear_error(index: object) -> None:
    """In every query that takes an index."""
    platform = fake()
    queries: tuple[Callable[[Any], object], ...] = (
        platform.get_device_name,
        platform.get_device_capability,
        platform.get_device_total_memory,
        platform.get_current_memory_usage,
        platform.set_device,
        platform.synchronize,
        platform.torch_device,
    )
    for query in queries:
        with pytest.raises(ConfigError, match=r"fake has no device .*: it has 2, numbered from 0"):
            query(index)


def test_a_member_that_does_not_exist_is_an_attribute_error() -> None:
    """The builtin `hasattr` tells the truth."""
    platform = fake()
    assert not hasattr(platform, "is_tpu")
    with pytest.raises(AttributeError):
        _ = platform.is_tpu  # type: ignore[attr-defined]


def test_it_belongs_to_its_process() -> None:
    """It is not pickled, and the error says what a worker asks instead."""
    with pytest.raises(TypeError, match=r"in the other one call hardpoint\.current_platform\(\)"):
        pickle.dumps(fake())


def test_precision() -> None:
    """The first dtype is the default; the error names the others; fp8 needs every device's word."""
    platform = fake()
    platform.check_if_supports_dtype("bf16")
    with pytest.raises(ConfigError, match="fake does not support float16 here; supported are bfloat16, float32"):
        platform.check_if_supports_dtype("float16")
    assert not platform.supports_fp8()
    assert fake("fp8").supports_fp8()
    assert not Fake(InMemoryMachine(), [Device(index=0, name="?")]).supports_fp8()
    assert platform.fp8_dtype() == "float8_e4m3fn"


def test_optional_members_do_nothing_by_default() -> None:
    """A vendor overrides what it needs."""
    platform = fake()
    platform.apply_config_defaults(object())
    platform.check_and_update_config(object())
    platform.verify_model_arch("LlamaForCausalLM")
    platform.verify_quantization("awq")
    assert not platform.supports_graph_capture()
    assert not platform.is_pin_memory_available()
    assert list(platform.kernel_modules()) == []
    assert platform.describe()["devices"][0]["physical_id"] == 4


@pytest.mark.torch
def test_execution_goes_to_torchs_module_of_the_device_type() -> None:
    """What a vendor gets without writing it."""
    torch = pytest.importorskip("torch")
    platform = fake()
    platform.set_device(0)
    platform.synchronize(0)
    platform.empty_cache()
    platform.manual_seed_all(7)
    first = torch.rand(3)
    torch.manual_seed(7)
    assert torch.equal(first, torch.rand(3))
    with platform.inference_mode():
        assert torch.is_inference_mode_enabled()
    assert platform.torch_device(1) == torch.device("cpu")


def test_a_machine_that_is_not_live_loads_nothing(site: Site) -> None:
    """Kernels answer `not_run`, a selection stays static, and a load says why it will not."""
    package = site.backend("one", top="raise AssertionError('imported')")
    platform = Fake(InMemoryMachine(variables={"HARDPOINT_PLUGINS": "fake-one"}), fake().devices)
    platform.torch_features = frozenset({"aten"})  # type: ignore[misc]
    assert [record.outcome for record in platform.import_kernels().modules] == []
    selection = platform.select_backend(config(), depth="ready")
    assert (selection.backend, selection.depth) == ("one", hardpoint.Depth.STATIC)
    with pytest.raises(hardpoint.EnvironmentFailure, match="not live"):
        selection.load()
    assert package


class WithKernels(Fake):
    def kernel_modules(self) -> tuple[KernelModule, ...]:
        return (KernelModule(name="no_such_package._kernels", operators=("attend",), distribution="fast-kernels"),)


def test_the_first_use_of_a_missing_operator_repeats_the_reason() -> None:
    """Why the module is not there, and what to type."""
    platform = WithKernels(hardpoint.LiveMachine(), fake().devices)
    before = platform.kernel_report
    assert before is None
    with pytest.raises(MissingOperatorError, match=r"no_such_package.*pip install fast-kernels") as caught:
        platform.get_operator("no_such_package._kernels", "attend")
    assert isinstance(caught.value, AttributeError)
    report = platform.kernel_report
    assert report is not None
    assert report.ok


@pytest.mark.torch
def test_torch_knows_the_device_before_it_is_handed_out() -> None:
    """A vendor's own torch device is registered by whatever gives it to torch first; the devices are not touched."""
    asked = []

    class Own(Fake):
        def register_torch_device(self) -> None:
            asked.append(self.name)

    platform = Own(InMemoryMachine(), [Device(index=0, name="One")])
    assert (platform.device_string(0), asked) == ("cpu", [])
    assert str(platform.torch_device(0)) == "cpu"
    platform.synchronize(0)
    assert asked == ["fake", "fake"]


@pytest.mark.torch
def test_torch_knows_the_device_before_a_backend_prepares(site: Site) -> None:
    """At depth `ready` a backend is handed a device that torch knows, also where no kernel module registered it."""
    site.platform("own", body="def register_torch_device(self):\n    type(self).known = True")
    site.backend(
        "one", prepare="import hardpoint\nassert hardpoint.current_platform().known, 'torch does not know the device'"
    )
    assert hardpoint.current_platform().select_backend(config(), depth="ready").backend == "one"


@pytest.mark.torch
def test_a_bug_in_the_registration_is_the_platforms(site: Site) -> None:
    """What goes wrong there is not the backend's, which waits for the device."""
    site.platform("own", body="def register_torch_device(self):\n    raise KeyError('wrong')")
    site.backend("one")
    with pytest.raises(KeyError) as caught:
        hardpoint.current_platform().select_backend(config(), depth="ready")
    (note,) = caught.value.__notes__
    assert "platform/own" in note


def test_a_platform_that_does_not_say_recommends_spawn() -> None:
    """Every platform answers how to start workers; the answer of one that says nothing is right everywhere."""
    assert fake().recommended_start_method() == ("spawn", "fake does not say that a fork can use its devices")
