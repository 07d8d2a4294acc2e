from __future__ import annotations

import logging
import os

import pytest

from hardpoint import InMemoryMachine, LiveMachine
from hardpoint._log import forget_logged
from hardpoint._settings import (
    DESCRIPTIONS,
    KINDS,
    Settings,
    backend_variable,
    read_backend_variable,
    read_settings,
    split_names,
    split_plugins,
    unknown_variables,
    warn_unknown,
)
from hardpoint.errors import SettingsError


def _read(**variables: str) -> Settings:
    return read_settings(InMemoryMachine(variables=variables))


def test_nothing_set() -> None:
    """Without variables every setting has its default, and says so."""
    settings = _read()
    assert settings == Settings()
    assert settings.source("HARDPOINT_STRICT") == "default"
    assert (settings.strict, settings.probe, settings.probe_timeout_seconds) == (False, "inprocess", 5.0)


@pytest.mark.parametrize("blank", ["", " ", "\t\n"])
def test_empty_means_unset(blank: str) -> None:
    """A variable that is set to nothing is not set."""
    assert _read(**dict.fromkeys(DESCRIPTIONS, blank)) == Settings()


def test_every_variable_is_read() -> None:
    """Each variable of ours reaches its setting, normalised."""
    settings = _read(
        HARDPOINT_PLATFORM=" CUDA, my-device ,auto",
        HARDPOINT_ATTENTION_BACKEND="Torch-SDPA",
        HARDPOINT_MLA_ATTENTION_BACKEND="flashmla,triton_mla",
        HARDPOINT_PLUGINS="Platform/My-Device, My_Vendor.Kernels",
        HARDPOINT_DISABLED_PLUGINS="backend/FLASH-ATTN",
        HARDPOINT_STRICT=" Yes ",
        HARDPOINT_PROBE="ISOLATED",
        HARDPOINT_PROBE_TIMEOUT=" 2.5 ",
        HARDPOINT_CACHE_DIR="/var/Cache",
    )
    assert settings.platform == ("cuda", "my_device", "auto")
    assert settings.backends == {"attention": ("torch_sdpa",), "mla_attention": ("flashmla", "triton_mla")}
    assert settings.plugins == ("platform/my_device", "my-vendor-kernels")
    assert settings.disabled_plugins == ("backend/flash_attn",)
    assert (settings.strict, settings.probe, settings.probe_timeout_seconds) == (True, "isolated", 2.5)
    assert settings.variables.keys() == DESCRIPTIONS.keys()
    assert settings.variables["HARDPOINT_CACHE_DIR"] == "/var/Cache"
    assert settings.source("HARDPOINT_PROBE") == "HARDPOINT_PROBE=ISOLATED"
    assert settings.as_dict()["platform"] == ["cuda", "my_device", "auto"]


def test_every_kind_has_a_variable() -> None:
    """Each kind of backend has its variable among the described ones."""
    assert backend_variable("mla_attention") == "HARDPOINT_MLA_ATTENTION_BACKEND"
    assert {backend_variable(kind) for kind in KINDS} == {name for name in DESCRIPTIONS if name.endswith("_BACKEND")}


@pytest.mark.parametrize(("text", "value"), [("1", True), ("TRUE", True), ("on", True), ("0", False), ("No", False)])
def test_switch(text: str, value: bool) -> None:
    """A switch takes the usual words in any case."""
    assert _read(HARDPOINT_STRICT=text).strict is value


@pytest.mark.parametrize(
    ("variable", "value", "accepted"),
    [
        ("HARDPOINT_STRICT", "2", "1, true, yes, on, 0, false, no, off"),
        ("HARDPOINT_STRICT", "strict", "1, true, yes, on, 0, false, no, off"),
        ("HARDPOINT_PROBE", "child", "inprocess, isolated"),
        ("HARDPOINT_PROBE_TIMEOUT", "0", "a number of seconds greater than 0"),
        ("HARDPOINT_PROBE_TIMEOUT", "-1", "a number of seconds greater than 0"),
        ("HARDPOINT_PROBE_TIMEOUT", "inf", "a number of seconds greater than 0"),
        ("HARDPOINT_PROBE_TIMEOUT", "nan", "a number of seconds greater than 0"),
        ("HARDPOINT_PROBE_TIMEOUT", "5s", "a number of seconds greater than 0"),
    ],
)
def test_value_that_means_nothing(variable: str, value: str, accepted: str) -> None:
    """A value that means nothing is an error with the variable, the value and what would be accepted."""
    with pytest.raises(SettingsError) as error:
        _read(**{variable: value})
    assert (
        str(error.value) == f"{variable}={value!r} means nothing; accepted: {accepted}. Correct it, or unset {variable}"
    )
    assert (error.value.setting, error.value.value) == (variable, value)


def test_lists() -> None:
    """Commas or blanks separate, empty items vanish, and a name counts where it stands first."""
    assert split_names(",b a,, B,a-c,A_C ") == ("b", "a", "a_c")
    assert split_plugins("Backend/x,backend/X, Some.Dist some-dist") == ("backend/x", "some-dist")


def test_settings_are_frozen() -> None:
    """A later change of a variable does not reach settings that were read before."""
    variables = {"HARDPOINT_PLATFORM": "cpu"}
    machine = InMemoryMachine(variables=variables)
    settings = read_settings(machine)
    variables["HARDPOINT_PLATFORM"] = "cuda"
    assert settings.platform == read_settings(machine).platform == ("cpu",)
    with pytest.raises(AttributeError):
        settings.strict = True  # type: ignore[misc]  # that is what is tested


def test_backend_variable_is_read_at_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the live machine a change of the kind's variable is seen at the next question, however it was made."""
    machine = LiveMachine()
    monkeypatch.delenv("HARDPOINT_ATTENTION_BACKEND", raising=False)
    assert read_backend_variable(machine, "attention") == ()
    monkeypatch.setenv("HARDPOINT_ATTENTION_BACKEND", "a,B-c")
    assert read_backend_variable(machine, "attention") == ("a", "b_c")
    os.environb[b"HARDPOINT_ATTENTION_BACKEND"] = b"d"
    assert read_backend_variable(machine, "attention") == ("d",)
    monkeypatch.setattr(os, "environ", {"HARDPOINT_ATTENTION_BACKEND": "e"})
    assert read_backend_variable(machine, "attention") == ("e",)


def test_one_question_per_selection() -> None:
    """A selection asks the machine for the one variable of its kind."""
    machine = InMemoryMachine(variables={"HARDPOINT_ATTENTION_BACKEND": "x"})
    read_backend_variable(machine, "attention")
    assert machine.questions == {"variable HARDPOINT_ATTENTION_BACKEND": 1}


def test_misspelt_variables() -> None:
    """Variables with our prefix that nobody owns are found, with the name that was meant; declared ones are owned."""
    machine = InMemoryMachine(
        variables={
            "HARDPOINT_PLATFROM": "cpu",
            "HARDPOINT_ATENTION_BACKEND": "x",
            "HARDPOINT_FROBNICATE": "1",
            "HARDPOINT_STRICT": "1",
            "HARDPOINT_MY_DEVICE_TILES": "4",
            "OTHER_PLATFROM": "1",
        }
    )
    assert unknown_variables(machine, ["HARDPOINT_MY_DEVICE_TILES"]) == {
        "HARDPOINT_PLATFROM": "HARDPOINT_PLATFORM",
        "HARDPOINT_ATENTION_BACKEND": "HARDPOINT_ATTENTION_BACKEND",
        "HARDPOINT_FROBNICATE": None,
    }


def test_misspelt_variable_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    """The warning names the variable and the one that was meant, once, and never its value."""
    forget_logged()
    machine = InMemoryMachine(variables={"HARDPOINT_PLATFROM": "secret", "HARDPOINT_XYZ": "secret"})
    for _ in range(3):
        warn_unknown(machine, ["HARDPOINT_OWNED"])
    known = ", ".join(sorted([*DESCRIPTIONS, "HARDPOINT_OWNED"]))
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (
            logging.WARNING,
            "unknown variable HARDPOINT_PLATFROM has no effect; did you mean HARDPOINT_PLATFORM?",
        ),
        (
            logging.WARNING,
            f"unknown variable HARDPOINT_XYZ has no effect. Known: {known}",
        ),
    ]
