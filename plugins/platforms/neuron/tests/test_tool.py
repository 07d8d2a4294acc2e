from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardpoint import EnvironmentFailure, InMemoryMachine, ReasonCode
from hardpoint._machine import ToolResult
from hardpoint_neuron._tool import ToolDevice, ask_tool, find_tool, parse_answer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

COMMAND = "neuron-ls --json-output"
GIB = 1 << 30


def test_one_device_of_trainium1() -> None:
    """The shapes of a trn1.2xlarge: numbers, a NUMA node in a text, no neighbours."""
    text = (
        '[{"neuron_device": 0, "bdf": "0000:00:1e.0", "cpu_affinity": "0-7", "numa_node": "-1", "connected_to": null, '
        '"nc_count": 2, "memory_size": 34359738368, "neuroncore_ids": [0, 1], "neuron_processes": []}]'
    )
    assert parse_answer(text, COMMAND) == (
        {0: ToolDevice(2, None, 32 * GIB, "0000:00:1e.0", None, "0-7", (), None)},
        None,
    )


def test_devices_of_trainium2() -> None:
    """There cores are logical ones, with their size beside them, and addresses may lack the domain."""
    text = json.dumps(
        [
            {"neuron_device": 0, "bdf": "CC:00.0", "connected_to": [12, 3, 4, 1], "nc_count": 4,
             "logical_neuroncore_config": 2, "memory_size": 96 * GIB, "instance_type": "trn2.48xlarge"},
            {"neuron_device": 1, "nc_count": 4, "numa_node": 1},
        ]
    )  # fmt: skip
    devices, problem = parse_answer(text, COMMAND)
    assert problem is None
    assert devices[0] == ToolDevice(4, 2, 96 * GIB, "0000:cc:00.0", None, None, (1, 3, 4, 12), "trn2.48xlarge")
    assert devices[1] == ToolDevice(cores=4, numa_node=1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "printed no JSON (JSONDecodeError): ''"),
        ("+--------+\n| NEURON |", "printed no JSON"),
        ("[" * 100_000, "printed no JSON"),
        ("[" + "9" * 5000 + "]", "printed no JSON (ValueError)"),
        ('{"error": "no neuron device found"}', "printed the error 'no neuron device found' and no list of devices"),
        ('{"schema": 2, "neuron_devices": []}', "and no list of devices"),
        ("null", "printed None and no list of devices"),
        ('"trn1"', "and no list of devices"),
        ("[]", "it lists no device"),
        ("[1]", "entry 0 is no device with a number: 1"),
        ('[{"neuron_device": true}]', "entry 0 is no device with a number"),
        ('[{"neuron_device": -1}]', "entry 0 is no device with a number"),
        ('[{"neuron_device": 1e0}]', "entry 0 is no device with a number"),
        ('[{"neuron_device": 0}, {"neuron_device": 0}]', "device 0 stands twice in it"),
        ('[{"neuron_device": 0, "nc_count": "x"}]', "nc_count of device 0 is 'x'"),
        ('[{"neuron_device": 0, "nc_count": 0, "bdf": 7}]', "nc_count of device 0 is 0 (and 1 more)"),
        ('[{"neuron_device": 0, "memory_size": NaN}]', "memory_size of device 0 is nan"),
        ('[{"neuron_device": 0, "memory_size": -5}]', "memory_size of device 0 is -5"),
        ('[{"neuron_device": 0, "connected_to": [1, null]}]', "connected_to of device 0 is [1, None]"),
        ('[{"neuron_device": 0, "numa_node": "first"}]', "numa_node of device 0 is 'first'"),
        ('[{"neuron_device": 0, "cpu_affinity": "all"}]', "cpu_affinity of device 0 is 'all'"),
        ('[{"neuron_device": 0, "instance_type": "a trn1"}]', "instance_type of device 0 is 'a trn1'"),
    ],
)
def test_what_cannot_be_read(text: str, words: str) -> None:
    """Everything that is not what is expected is one reason in words."""
    problem = parse_answer(text, COMMAND).problem
    assert problem is not None
    assert problem.message.startswith(COMMAND)
    assert words in problem.message


def test_the_rest_of_a_faulty_answer_counts() -> None:
    """A field that cannot be read is unknown; its neighbours are not."""
    text = '[{"neuron_device": 0, "nc_count": "two", "memory_size": 5}, "?", {"neuron_device": 3, "nc_count": 2}]'
    devices, problem = parse_answer(text, COMMAND)
    assert devices == {0: ToolDevice(memory_bytes=5), 3: ToolDevice(cores=2)}
    assert problem is not None


def test_later_tools() -> None:
    """Fields that nobody knows yet change nothing."""
    text = '[{"neuron_device": 0, "nc_count": 2, "neuron_device_v2": {"tiles": []}, "schema": 9}]'
    assert parse_answer(text, COMMAND) == ({0: ToolDevice(cores=2)}, None)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FIELDS = ("neuron_device", "bdf", "cpu_affinity", "numa_node", "connected_to", "nc_count", "memory_size",
          "logical_neuroncore_config", "instance_type", "error")  # fmt: skip
ENTRY = st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, JSON | st.integers(0, 9)))


@given(st.lists(ENTRY | JSON, max_size=4) | ENTRY | JSON)
def test_any_json(data: Any) -> None:
    """Whatever JSON it prints: devices with values in their bounds, and a reason where anything was wrong."""
    devices, problem = parse_answer(json.dumps(data), COMMAND)
    assert devices or problem is not None
    for device in devices.values():
        assert device.cores is None or 1 <= device.cores <= 128
        assert device.memory_bytes is None or device.memory_bytes > 0
        assert device.numa_node is None or device.numa_node >= 0


@given(st.text())
def test_any_text(text: str) -> None:
    """Whatever it prints, the answer is data."""
    assert parse_answer(text, COMMAND).problem is not None or json.loads(text)


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (
            EnvironmentFailure(f"timed out after 5 s running {COMMAND}", code="timeout"),
            "timeout",
            "timed out after 5 s",
        ),
        (PermissionError(13, "Permission denied", "neuron-ls"), "permission", f"{COMMAND}: [Errno 13]"),
        (OSError(8, "Exec format error", "neuron-ls"), "other", "Exec format error"),
        (ToolResult(-11, "", ""), "crashed", "crashed with SIGSEGV"),
        (ToolResult(-99, "", ""), "crashed", "crashed with signal 99"),
        (ToolResult(1, "", "no device\nmore"), "other", "exited with code 1: no device"),
        (ToolResult(1, "", ""), "other", "exited with code 1: no words"),
        (ToolResult(0, "[", "", truncated=True), "other", "printed more than is read"),
    ],
)
def test_how_it_may_end(answer: Any, code: str, words: str) -> None:
    """However it ends, there is a reason of its own code."""
    devices, problem = ask_tool(InMemoryMachine(tools={COMMAND: answer}))
    assert devices == {}
    assert problem is not None
    assert problem.code is ReasonCode(code)
    assert words in problem.message


def test_where_it_stands() -> None:
    """It is looked for on the search path, then where its package puts it."""
    usual = "/opt/aws/neuron/bin/neuron-ls"
    assert find_tool(InMemoryMachine(tools={COMMAND: "[]", usual: "[]"})) == "neuron-ls"
    elsewhere = InMemoryMachine(tools={usual: '[{"neuron_device": 0, "nc_count": 2}]'})
    assert find_tool(elsewhere) == usual
    assert ask_tool(elsewhere) == ({0: ToolDevice(cores=2)}, None)
    problem = ask_tool(InMemoryMachine()).problem
    assert problem is not None
    assert (problem.code, problem.remedy) == (ReasonCode.NOT_INSTALLED, "install aws-neuronx-tools")


# Real programs on the search path.


def test_program_that_answers(host: Any, entry: Callable[..., dict[str, Any]]) -> None:
    """It is run once, with the one argument that asks for JSON."""
    host.tool(f"cat <<'END'\n{json.dumps([entry(0, 'trn1')])}\nEND")
    devices, problem = ask_tool(host.machine)
    assert problem is None
    assert devices[0].memory_bytes == 32 * GIB
    assert host.log.read_text() == f"{host.programs}/neuron-ls --json-output\n"


def test_program_that_hangs(host: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """B14: it is stopped at the limit, with the child that it has started."""
    monkeypatch.setenv("HARDPOINT_PROBE_TIMEOUT", "0.3")
    host.tool(f"sleep 600 & echo $! >{tmp_path}/pid; wait")
    problem = ask_tool(host.machine).problem
    assert problem is not None
    assert (problem.code, problem.message) == (ReasonCode.TIMEOUT, f"timed out after 0.3 s running {COMMAND}")
    pid = int((tmp_path / "pid").read_text())
    state = f"/proc/{pid}/stat"
    try:
        with open(state) as file:
            assert file.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        pass


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        ("kill -SEGV $$", "crashed", "crashed with SIGSEGV"),
        ("kill -ABRT $$", "crashed", "crashed with SIGABRT"),
        ("echo 'level=fatal error=\"failed to discover Neuron devices\"' >&2; exit 1", "other", "failed to discover"),
        ("head -c 100000 /dev/zero", "other", "printed no JSON"),
        ("printf '\\377\\376['", "other", "printed no JSON"),
        ("yes '[' | head -c 6000000", "other", "printed more than is read"),
        ("", "other", "printed no JSON"),
    ],
)
def test_program_that_fails(host: Any, script: str, code: str, words: str) -> None:
    """A crash, an error and garbage are reasons."""
    host.tool(script)
    problem = ask_tool(host.machine).problem
    assert problem is not None
    assert problem.code is ReasonCode(code)
    assert words in problem.message
