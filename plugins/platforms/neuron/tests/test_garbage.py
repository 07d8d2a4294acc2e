from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hardpoint import EnvironmentFailure, InMemoryMachine
from hardpoint._machine import ToolResult
from hardpoint.hookspecs import DetectionStatus
from hardpoint_neuron.platform import NeuronPlatform
from hardpoint_neuron.plugin import plugin

SYSFS = "/sys/devices/virtual/neuron_device"
COMMAND = "neuron-ls --json-output"

TEXT = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["0", "1", "2", "0-1", "0-3,5", "", "-1", "Trainium2", "Trn2", "trn2.48xlarge", "8", "12, 3", "4\n"]
    ),
)
CONTENT = st.one_of(
    TEXT, st.binary(max_size=12), st.just(PermissionError(13, "Permission denied")), st.just(OSError(5, "I/O error"))
)
NUMBER = st.integers(0, 2)
FILES = ("core_count", "connected_devices", "info/architecture/device_name", "info/architecture/instance_type",
         "neuron_core0/x", "neuron_core1/x", "neuron_corex/x")  # fmt: skip
PATHS = st.one_of(
    st.builds("/dev/neuron{}".format, NUMBER),
    st.builds(f"{SYSFS}/neuron{{}}/{{}}".format, NUMBER, st.sampled_from(FILES)),
    st.sampled_from(["/sys/devices/virtual/dmi/id/product_name", "/sys/module/neuron/version", f"{SYSFS}/neuronx/y"]),
)
FIELD = st.one_of(st.none(), st.booleans(), st.integers(-2, 9), st.floats(), TEXT, st.lists(NUMBER | TEXT, max_size=3))
KEYS = ("bdf", "cpu_affinity", "numa_node", "connected_to", "nc_count", "memory_size", "logical_neuroncore_config",
        "instance_type")  # fmt: skip
ENTRY = st.fixed_dictionaries({"neuron_device": NUMBER | FIELD}, optional=dict.fromkeys(KEYS, FIELD))
TOOL: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.lists(ENTRY, max_size=3).map(json.dumps),
    TEXT,
    st.just(EnvironmentFailure("timed out after 5 s running neuron-ls --json-output", code="timeout")),
    st.builds(ToolResult, st.integers(-70, 3), TEXT, TEXT, st.booleans()),
)
VARIABLES = st.dictionaries(
    st.sampled_from(
        ["NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES", "NEURON_LOGICAL_NC_CONFIG", "NEURON_RT_VIRTUAL_CORE_SIZE"]
    ),
    TEXT,
)
PACKAGES = st.dictionaries(st.sampled_from(["torch", "torch-neuronx", "neuronx-cc"]), TEXT)


@settings(max_examples=400, deadline=None)
@given(files=st.dictionaries(PATHS, CONTENT, max_size=14), tool=TOOL, variables=VARIABLES, packages=PACKAGES)
def test_any_machine(
    files: dict[str, str | bytes | OSError], tool: Any, variables: dict[str, str], packages: dict[str, str]
) -> None:
    """Whatever a machine answers: devices, or reasons in words; and what is asked of the platform is answered."""
    machine = InMemoryMachine(
        files=files, tools={} if tool is None else {COMMAND: tool}, variables=variables, distributions=packages
    )
    detection = plugin.hardpoint_detect(machine)
    if detection.status is not DetectionStatus.USABLE:
        assert detection.reasons
        assert all(reason.message for reason in detection.reasons)
    json.dumps([device.as_dict() for device in detection.devices], allow_nan=False)
    (section,) = plugin.hardpoint_report(machine)
    assert all(isinstance(text, str) for line in section.lines for text in line)
    if detection.devices:
        platform = NeuronPlatform(machine, detection.devices)
        last = platform.device_count() - 1
        assert platform.supported_dtypes[-1] == "float32"
        assert platform.device_type in ("neuron", "xla")
        assert platform.are_peers(last, last) in (True, None)
        platform.get_current_memory_usage(last)
        platform.get_device_cpu_affinity(last)
