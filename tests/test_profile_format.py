from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardpoint._profile_format import FormatError, fill_in, parse_profile
from tests.profiles import profile


def parsed(data: Any) -> Any:
    """The content of a profile with this data."""
    return parse_profile(json.dumps(data).encode())


def test_whole_profile() -> None:
    """Every part of the format is read."""
    content = parsed(profile(aliases=["a"], count=2))
    assert (content.platform, content.description, content.aliases, content.part_devices) == (
        "fake",
        "a device of 9.0",
        ("a",),
        2,
    )
    assert content.machine == {"system": "Linux", "architecture": "x86_64"}
    assert not content.is_host
    assert parsed(profile(per_device={})).is_host


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "it is no JSON: "),
        (b"{", "it is no JSON: "),
        (b"\xff", "it is no UTF-8: "),
        (b"[]", "it holds []; accepted: an object with schema, platform"),
        (b"3", "it holds 3; accepted: an object"),
        (b'{"schema": NaN}', "JSON has no NaN; what is unknown is null"),
        (b'{"schema": 1, "schema": 1}', "'schema' stands twice in one object"),
        (b"[" * 100_000, "it is no JSON: "),
        (b'{"schema": ' + b"1" * 5000 + b"}", "it is no JSON: "),
    ],
)
def test_no_json_object(content: bytes, text: str) -> None:
    """Whatever the bytes are, the error says what is wrong with them."""
    with pytest.raises(FormatError) as error:
        parse_profile(content)
    assert str(error.value).startswith(text)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"schema": 2}, "schema is 2; accepted: 1; a newer hardpoint may read it"),
        ({"schema": "1"}, "schema is '1'; accepted: 1"),
        ({"schema": True}, "schema is True; accepted: 1"),
        ({"schema": None}, "schema is missing; accepted: 1"),
        ({"platform": 3}, "platform is 3; accepted: a text"),
        ({"platform": " "}, "platform is ' '; accepted: a text"),
        ({"description": None}, "description is missing; accepted: a text"),
        ({"sources": None}, "sources is missing; accepted: a list of texts"),
        ({"sources": []}, "sources is empty; accepted: where each figure comes from"),
        ({"sources": [""]}, "sources is ['']; accepted: a list of texts"),
        ({"aliases": "a"}, "aliases is 'a'; accepted: a list of texts"),
        ({"count": 0}, "count is 0; accepted: how many devices one part brings, at least 1"),
        ({"count": True}, "count is True; accepted: how many devices"),
        ({"per_devices": {}}, "per_devices is unknown; did you mean per_device?"),
        ({"zzz": {}}, "zzz is unknown; accepted: schema, platform"),
        ({"machine": []}, "machine is []; accepted: an object"),
        ({"per_machine": 3}, "per_machine is 3; accepted: an object"),
        ({"machine": {"architectures": "x"}}, "machine.architectures is unknown; did you mean architecture?"),
        ({"machine": {"cpu_count": "8"}}, "machine.cpu_count is '8'; accepted: a whole number"),
        ({"machine": {"cpu_count": 0}}, "machine.cpu_count is 0; accepted: a whole number"),
        ({"machine": {"total_memory_bytes": 1.5}}, "machine.total_memory_bytes is 1.5; accepted: a whole number of"),
        ({"machine": {"cpu_affinity": [1, "2"]}}, "machine.cpu_affinity is [1, '2']; accepted: a list of CPU numbers"),
        ({"machine": {"system": None}}, "machine.system is missing; accepted: a text"),
        ({"per_machine": {"file": {}}}, "per_machine.file is unknown; did you mean files?"),
        ({"per_machine": {"files": []}}, "per_machine.files is []; accepted: an object"),
        ({"per_machine": {"files": {"/x": 3}}}, "per_machine.files['/x'] is 3; accepted: a text"),
        ({"per_machine": {"directories": {}}}, "per_machine.directories is {}; accepted: a list of paths"),
        ({"per_machine": {"links": {"/x": None}}}, "per_machine.links['/x'] is missing; accepted: a text"),
        ({"per_machine": {"variables": {"X": 1}}}, "per_machine.variables['X'] is 1; accepted: a text"),
        ({"per_machine": {"distributions": {"x": 1}}}, "per_machine.distributions['x'] is 1; accepted: a text"),
        ({"per_machine": {"tools": {"x": ["a"]}}}, "per_machine.tools['x'] is ['a']; accepted: the text it prints, or"),
        ({"per_machine": {"tools": {"x": {"yaml": 1}}}}, "per_machine.tools['x'] is {'yaml': 1}; accepted: the text"),
        (
            {"per_device": {"files": {"/{x}": ""}}},
            "per_device.files: unknown placeholder {x}; accepted: {bus}, {index}",
        ),
        (
            {"per_device": {"files": {"/{": ""}}},
            "; accepted: {bus}, {index}, {node}, {uuid}, and {{ or }} for a brace: in '/{'",
        ),
        ({"per_device": {"files": {"/{index.real}": ""}}}, "unknown placeholder {index.real}"),
        ({"per_device": {"probes": {"a": [{"b": "{index[0]}"}]}}}, "unknown placeholder {index[0]}"),
        ({"per_device": {"probes": {"a": "{}"}}}, "unknown placeholder {}"),
        ({"per_device": {"probes": {"a": "{index!r}"}}}, "unknown placeholder {index}"),
        ({"per_device": {"probes": {"a": "{index:{bus}}"}}}, "unknown placeholder {index}"),
        ({"per_device": {"probes": {"a": "{uuid:d}"}}}, "Unknown format code 'd'"),
        ({"per_device": {"directories": ["/{zzz}"]}}, "unknown placeholder {zzz}"),
    ],
)
def test_wrong_field(change: dict[str, Any], text: str) -> None:
    """The error names the field, what it holds and what is accepted."""
    data = {key: value for key, value in {**profile(), **change}.items() if value is not None}
    with pytest.raises(FormatError) as error:
        parsed(data)
    assert text in str(error.value)


def test_all_faults_at_once() -> None:
    """Nobody has to mend a file one fault at a time."""
    with pytest.raises(FormatError, match=r"description is 1; .*count is 0; .*machine\.cpu_count is 0"):
        parsed(profile(description=1, count=0, machine={"cpu_count": 0}))


def test_filling_in() -> None:
    """Names are filled in as str.format does, in keys too; a text that is one number becomes it; braces are doubled."""
    names: dict[str, int | str] = {"index": 1, "node": 2, "bus": 17, "uuid": "u"}
    value = {"/dev/x{index}": ["{index:d}", "{node:d} of", "{bus:02x}", "{{json}}", "GPU-{uuid}", 3, None, True]}
    assert fill_in(value, names) == {"/dev/x1": [1, "2 of", "11", "{json}", "GPU-u", 3, None, True]}


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["{index}", "{"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*profile(), *profile()["per_machine"], "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.binary(max_size=64) | _json.map(lambda value: json.dumps(value).encode()))
def test_any_bytes(content: bytes) -> None:
    """A profile or a fault, never another error."""
    try:
        parse_profile(content)
    except FormatError:
        return


@given(st.dictionaries(st.sampled_from(list(profile())), _json, max_size=3))
def test_any_change_of_a_right_one(change: dict[str, Any]) -> None:
    """What is accepted can also be filled in."""
    try:
        content = parsed(profile(**change))
    except FormatError:
        return
    fill_in(content.per_device, {"index": 0, "node": 1, "bus": 16, "uuid": "00000000-0000-0000-0000-000000000000"})
