"""The plugin contract, checked: everything that pluggy would let pass in silence, all of it at once, with the fix."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from hardpoint._importing import is_target
from hardpoint._names import near_miss
from hardpoint._reasons import Provenance, Reason, ReasonCode
from hardpoint.errors import ContractError
from hardpoint.hookspecs import (
    API_VERSION,
    PROJECT,
    Detection,
    DetectionStatus,
    Device,
    HookSpecs,
    PlatformSpec,
    Rank,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hardpoint._backend_spec import BackendSpec

HOOKS: Final = {
    "platform": ("hardpoint_platform", "hardpoint_detect", "hardpoint_report"),
    "backend": ("hardpoint_backend", "hardpoint_report"),
}
"""The hooks of each kind of plugin; all but `hardpoint_report` are mandatory."""
OPERATION_KINDS: Final = ("attention", "mla_attention")
_NOTHING: Final = type(None)
_DEVICE_MEMBERS: Final = (
    ("name", (str,), "text"),
    ("physical_id", (int, str, _NOTHING), "a number, text or None"),
    ("visible_id", (str, _NOTHING), "text or None"),
    ("uuid", (str, _NOTHING), "text or None"),
    ("pci_bus_id", (str, _NOTHING), "text or None"),
    ("total_memory_bytes", (int, _NOTHING), "a number or None"),
    ("numa_node", (int, _NOTHING), "a number or None"),
)
_ALL_HOOKS: Final = tuple(name for name in vars(HookSpecs) if name.startswith("hardpoint_"))
_MARKER: Final = f"{PROJECT}_impl"
NEVER_HOOKS: Final = frozenset((*dir(object), "__dict__", "__module__", "__weakref__"))
"""Members that every object has. To look at each of them costs a start more than to look at all hooks."""


def check_object(kind: str, plugin: object, provenance: Provenance) -> None:
    """Check the object that an entry point names. Errors: one `ContractError` with every problem."""
    if problems := list(_object_problems(kind, plugin)):
        raise ContractError(f"{provenance}: " + "; ".join(problems), plugin=provenance.plugin)


def _object_problems(kind: str, plugin: object) -> Iterator[str]:
    if plugin is None:
        yield "the plugin object is None; name an instance or a module with hooks"
        return
    if inspect.isclass(plugin):
        yield f"the plugin object is the class {plugin.__name__}, not an instance; write plugin = {plugin.__name__}()"
        return
    implemented: dict[str, str] = {}
    for name, function, marker in _functions(plugin):
        if marker is None:
            if name.startswith(f"{PROJECT}_"):
                yield f"{name} lacks the @hookimpl marker, so that it would never be called"
            continue
        hook = marker.get("specname") or name
        if hook not in _ALL_HOOKS:
            close = near_miss(hook, _ALL_HOOKS)
            yield f"{hook} is no hook of hardpoint" + (f"; did you mean {close}?" if close else "")
        elif hook not in HOOKS[kind]:
            yield f"{hook} is no hook of a {kind} plugin; give it an entry point of its own with an object of its own"
        elif marker.get("wrapper") or marker.get("hookwrapper"):
            yield f"{hook} is a wrapper; wrappers are refused, since they would run around other plugins"
        elif hook in implemented:
            yield f"{implemented[hook]} and {name} both implement {hook}"
        else:
            implemented[hook] = name
            yield from _argument_problems(hook, function)
    for hook in HOOKS[kind]:
        if hook != "hardpoint_report" and hook not in implemented:
            yield f"the mandatory hook {hook} is missing"


def _functions(plugin: object) -> Iterator[tuple[str, Any, dict[str, Any] | None]]:
    # getattr_static: a property of the plugin that opens a device must not run here.
    for name in dir(plugin):
        if name in NEVER_HOOKS:
            continue
        raw = inspect.getattr_static(plugin, name, None)
        function = getattr(raw, "__func__", raw) if isinstance(raw, (staticmethod, classmethod)) else raw
        if isinstance(function, property) or not (inspect.isroutine(function) or inspect.isfunction(function)):
            continue
        marker = getattr(raw, _MARKER, None) or getattr(function, _MARKER, None)
        yield name, raw, marker if isinstance(marker, dict) else None


def _argument_problems(hook: str, raw: Callable[..., object]) -> Iterator[str]:
    function = getattr(raw, "__func__", raw)
    allowed = _argument_names(getattr(HookSpecs, hook))
    # Nearly always so; a signature is slow to make, and every start asks for one per hook.
    is_plain = not hasattr(function, "__wrapped__")
    if is_plain and isinstance(function, FunctionType) and _argument_names(function) <= allowed:
        return
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return
    for position, parameter in enumerate(parameters):
        if position == 0 and parameter.name in ("self", "cls"):
            continue
        if parameter.name not in allowed - {"self"} and parameter.default is inspect.Parameter.empty:
            expected = ", ".join(sorted(allowed - {"self"})) or "no argument"
            yield f"{hook} asks for {parameter.name!r}; it is given {expected}"


def _argument_names(function: FunctionType) -> set[str]:
    code = function.__code__
    variadic = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + variadic])


def check_spec(
    kind: str, spec: object, provenance: Provenance, requires_hardpoint: Callable[[], str | None] = lambda: None
) -> list[str]:
    """Check the descriptor that a plugin returned. Returns remarks; errors: `ContractError` with every problem.

    `requires_hardpoint` reads what the plugin's metadata require of us; it is asked only where that is worth quoting.
    """
    if kind == "backend":
        from hardpoint._backend_spec import BackendSpec

        wanted: type = BackendSpec
    else:
        wanted = PlatformSpec
    if not isinstance(spec, wanted):
        raise ContractError(
            f"{provenance}: hardpoint_{kind}() returned {spec!r}; expected a {wanted.__name__}",
            plugin=provenance.plugin,
        )
    described: Any = spec
    remarks = _check_api(described.api, provenance, requires_hardpoint)
    problems = _backend_problems(described) if kind == "backend" else _platform_problems(described)
    target: object = described.target
    if not (isinstance(target, str) and is_target(target)):
        problems.append(f"target {target!r} is not of the form 'package.module:Class'")
    replaces: object = described.replaces
    if not (replaces is None or isinstance(replaces, str)):
        problems.append(f"replaces is {replaces!r}; expected the name of a distribution")
    if problems:
        raise ContractError(f"{provenance}: " + "; ".join(problems), plugin=provenance.plugin)
    return remarks


def _platform_problems(spec: PlatformSpec) -> list[str]:
    problems = []
    if not any(spec.rank == rank for rank in Rank):
        problems.append(f"rank is {spec.rank!r}; expected one of {', '.join(f'Rank.{rank.name}' for rank in Rank)}")
    profiles: object = spec.profiles
    if profiles is not None and not (isinstance(profiles, str) and _is_folder(profiles)):
        problems.append(f"profiles is {profiles!r}; expected 'package:folder'")
    return problems


def _is_folder(text: str) -> bool:
    package, _, folder = text.partition(":")
    # No way out of the package.
    return all(part.isidentifier() for part in package.split(".")) and all(
        part not in ("", ".", "..") and "\\" not in part for part in folder.split("/")
    )


def check_detection(answer: object, provenance: Provenance) -> Detection:
    """Check what `hardpoint_detect` returned: its class methods make no wrong one. Errors: `ContractError`."""
    if not isinstance(answer, Detection):
        problems = [f"{answer!r}; expected a Detection"]
    else:
        problems = list(_detection_problems(answer))
    if problems:
        text = f"{provenance}: hardpoint_detect() returned {'; '.join(problems)}"
        raise ContractError(text, plugin=provenance.plugin)
    return answer  # type: ignore[return-value]  # anything else is a problem


def _detection_problems(answer: Detection) -> Iterator[str]:
    status: object = answer.status
    if not isinstance(status, DetectionStatus):
        yield f"the status {status!r}; use Detection.usable(), .unusable() or .absent()"
    for member in ("reasons", "notes"):
        value = getattr(answer, member)
        if not isinstance(value, tuple) or not all(isinstance(item, Reason) for item in value):
            yield f"{member} {value!r}; expected a tuple of Reasons"
    devices: object = answer.devices
    if not isinstance(devices, tuple) or not all(isinstance(item, Device) for item in devices):
        yield f"devices {devices!r}; expected a tuple of Devices"
        return
    found = [device.index for device in devices]
    if status is DetectionStatus.USABLE and (not devices or found != list(range(len(devices)))):
        yield f"devices numbered {found}; a usable machine has at least one, numbered 0, 1, … in order"
    for device in devices:
        yield from _device_problems(device)


def _device_problems(device: Device) -> Iterator[str]:
    """What whoever asks the platform for it would stumble over."""
    if device.capability is not None:
        from hardpoint._capability import DeviceCapability

        capability: object = device.capability
        if not isinstance(capability, DeviceCapability):
            yield f"device {device.index} with the capability {capability!r}; expected a DeviceCapability"
    for member, types, expected in _DEVICE_MEMBERS:
        value = getattr(device, member)
        if not isinstance(value, types) or isinstance(value, bool):
            yield f"device {device.index!r} with {member} {value!r}; expected {expected}"
    if device.total_memory_bytes == 0:
        yield f"device {device.index!r} with total_memory_bytes 0; unknown is None"
    properties: object = device.properties
    if not isinstance(properties, Mapping):
        yield f"device {device.index!r} with properties {properties!r}; expected a mapping"
        return
    # Values may be anything: a report shows them as text.
    for name in properties:
        if not isinstance(name, str):
            yield f"device {device.index!r} with the property {name!r}; expected text"


def _backend_problems(spec: BackendSpec) -> list[str]:
    from hardpoint._backend_spec import Order

    problems = []
    if spec.kind not in OPERATION_KINDS:
        problems.append(f"kind {spec.kind!r} is unknown; known are {', '.join(OPERATION_KINDS)}")
    members = ("platforms", "requires", "kernel_modules", "kernel_architectures", "torch_features")
    values = {member: getattr(spec, member) for member in members}
    order: object = spec.order
    if isinstance(order, Order):
        values |= {f"order.{member}": getattr(order, member) for member in ("before", "after", "platforms")}
    else:
        problems.append(f"order is {order!r}; expected an Order")
    for member, value in values.items():
        if not isinstance(value, tuple) or not all(isinstance(item, str) for item in value):
            problems.append(f"{member} is {value!r}; expected a tuple of strings")
    if not spec.platforms:
        problems.append("platforms is empty; name platforms, or 'torch-device'")
    if not isinstance(getattr(spec.support, "variants", None), tuple):
        problems.append(f"support is {spec.support!r}; expected an AttentionSupport")
    return problems


def _check_api(api: object, provenance: Provenance, requires_hardpoint: Callable[[], str | None]) -> list[str]:
    ours = f"{API_VERSION[0]}.{API_VERSION[1]}"
    if api is None:
        return [f"{provenance} declares no contract version (api=); taken as {ours}"]
    if not (isinstance(api, tuple) and len(api) == 2 and all(type(part) is int for part in api)):
        raise ContractError(
            f"{provenance}: api is {api!r}; expected a pair of numbers such as {API_VERSION}", plugin=provenance.plugin
        )
    if api[0] == API_VERSION[0] and api[1] <= API_VERSION[1]:
        return []
    required = requires_hardpoint()
    quoted = f"; its metadata says 'Requires-Dist: {required}'" if required else ""
    raise ContractError(
        f"{provenance} is written for plugin contract {api[0]}.{api[1]}, and this hardpoint offers {ours}{quoted}",
        plugin=provenance.plugin,
        code=ReasonCode.INCOMPATIBLE_API,
        remedy="install a version of the plugin for this hardpoint, or another hardpoint",
    )


def check_class(target: object, base: type, provenance: Provenance, target_text: str) -> list[str]:
    """Check the class behind a lazy target.

    Returns public members that neither the contract knows nor `own_members` names: hooks that nobody calls.
    """
    if not inspect.isclass(target):
        raise ContractError(
            f"{provenance}: target {target_text!r} is {target!r}; expected a class", plugin=provenance.plugin
        )
    if not issubclass(target, base):
        raise ContractError(
            f"{provenance}: {target_text!r} is no subclass of {_public_name(base)}",
            plugin=provenance.plugin,
        )
    if missing := sorted(getattr(target, "__abstractmethods__", ())):
        raise ContractError(
            f"{provenance}: {target_text!r} does not define {', '.join(missing)}", plugin=provenance.plugin
        )
    known = {*dir(base), *getattr(target, "own_members", ())}
    return sorted(
        name
        for cls in target.__mro__
        if not issubclass(base, cls)
        for name in vars(cls)
        if not name.startswith("_") and name not in known
    )


def _public_name(base: type) -> str:
    """From where a plugin's author imports it: the package above our private module."""
    package = ".".join(part for part in base.__module__.split(".") if not part.startswith("_"))
    return f"{package}.{base.__qualname__}"


def check_validate_signature(target: type, provenance: Provenance) -> None:
    """`validate_configuration` has to take the capability and the config. Errors: `ContractError`."""
    function = target.validate_configuration  # type: ignore[attr-defined]  # checked to be an AttentionBackend
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as error:
        raise ContractError(
            f"{provenance}: {target.__qualname__}.validate_configuration cannot be called with "
            f"(device_capability, config) of plugin contract {API_VERSION[0]}.{API_VERSION[1]}: {error}",
            plugin=provenance.plugin,
            code=ReasonCode.INCOMPATIBLE_API,
        ) from None
