"""The cases of selection, B29 to B39: explicit choices, failures, the cache, messages, capabilities, mixed devices."""

from __future__ import annotations

import gc
import itertools
import json
import logging
import os
import re
import subprocess
import sys
import weakref
from typing import TYPE_CHECKING, Any

import pytest

import hardpoint
from hardpoint import DeviceCapability, Outcome, ReasonCode
from hardpoint.errors import BackendUnavailableError, ConfigError, NoBackendError, SettingsError, UnknownBackendError
from tests.plugins import Site, config, imported, usable_each

if TYPE_CHECKING:
    from pathlib import Path

FIRST = "BackendPriority('first', 'fastest'), BackendPriority('second', 'works everywhere')"
VARIABLE = "HARDPOINT_ATTENTION_BACKEND"


@pytest.fixture
def pair(site: Site) -> Site:
    """A platform that prefers `first` to `second`, both installed."""
    site.platform("fake", priorities=FIRST)
    site.backend("first")
    site.backend("second")
    return site


def select(*arguments: Any, **options: Any) -> hardpoint.Selection:
    """A selection on the current platform."""
    return hardpoint.current_platform().select_backend(*arguments, **options)


def reasons(selection: hardpoint.Selection, name: str) -> str:
    """All reasons of one candidate."""
    (found,) = [item for item in selection.candidates if item.name == name]
    return "; ".join(reason.message for reason in found.reasons)


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The texts of all WARNINGs."""
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize("how", ["argument", "variable"])
@pytest.mark.parametrize("name", ["NOPE", "cuda", "auto_", "first second"])
def test_b29_a_name_that_is_none(pair: Site, how: str, name: str) -> None:
    """B29: a ValueError that lists the valid names, from either source, never a default."""
    if name == "first second":
        assert select(config(), "first second").backend == "first"
        return
    if how == "variable":
        pair.monkeypatch.setenv(VARIABLE, name)
    with pytest.raises(UnknownBackendError) as caught:
        select(config(), name if how == "argument" else None)
    assert isinstance(caught.value, ValueError)
    for part in ("first", "second", repr(name.lower()), VARIABLE if how == "variable" else "argument"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("flash-atn", "flash_attn"),
        ("flashattn", "flash_attn"),
        ("FLASH_ATTENTION", "flash_attn"),
        ("torch.sdpa", "torch_sdpa"),
    ],
)
def test_b29_a_near_miss(site: Site, asked: str, meant: str) -> None:
    """B29: the nearest name is suggested; another case, or hyphens, are no miss at all."""
    site.platform("fake")
    site.backend("flash_attn")
    site.backend("torch_sdpa")
    with pytest.raises(UnknownBackendError, match=f"did you mean '{meant}'"):
        select(config(), asked)
    assert select(config(), meant.replace("_", "-").upper()).backend == meant


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("HARDPOINT_ATTENTION_BACKED", "HARDPOINT_ATTENTION_BACKEND"),
        ("HARDPOINT_ATTN_BACKEND", "HARDPOINT_ATTENTION_BACKEND"),
        ("HARDPOINT_PLATFROM", "HARDPOINT_PLATFORM"),
        ("HARDPOINT_MLA_BACKEND", "HARDPOINT_MLA_ATTENTION_BACKEND"),
    ],
)
def test_b29_a_misspelt_variable(site: Site, caplog: pytest.LogCaptureFixture, variable: str, meant: str) -> None:
    """B29: one WARNING names it and what was probably meant, though nothing else is wrong."""
    site.platform("fake")
    site.monkeypatch.setenv(variable, "first")
    with caplog.at_level(logging.WARNING, "hardpoint"):
        hardpoint.resolve()
        hardpoint.current_platform()
    (text,) = warnings_in(caplog)
    assert variable in text
    assert meant in text


def test_b29_argument_and_variable_disagree(pair: Site, caplog: pytest.LogCaptureFixture) -> None:
    """B29: the argument wins, and one WARNING names both values; where they agree nothing is said."""
    pair.monkeypatch.setenv(VARIABLE, "first")
    with caplog.at_level(logging.WARNING, "hardpoint"):
        assert select(config(), "FIRST").backend == "first"
        assert not warnings_in(caplog)
        assert select(config(), "second").backend == "second"
    (text,) = warnings_in(caplog)
    for part in ("second", "first", "argument", VARIABLE):
        assert part in text


@pytest.mark.parametrize("how", ["argument", "variable"])
def test_b29_a_second_component_with_another_config(pair: Site, how: str) -> None:
    """B29: what was asked for serves every component, or it is an error; never a silent swap."""
    pair.backend("narrow", validate="return ['head_size=128 is too wide'] if config.head_size > 64 else []")
    asked = "narrow" if how == "argument" else None
    if how == "variable":
        pair.monkeypatch.setenv(VARIABLE, "narrow")
    assert select(config(), asked).backend == "narrow"
    with pytest.raises(BackendUnavailableError, match="head_size=128 is too wide"):
        select(config(head_size=128), asked)
    with pytest.raises(BackendUnavailableError, match="too wide"):
        select(config(head_size=128, attention_type="encoder_only", block_size=None), asked)
    latent = {"kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16}
    other = config(kind="mla_attention", head_size=40, num_kv_heads=1, **latent)
    if how == "argument":
        with pytest.raises(BackendUnavailableError, match="mla_attention was asked for"):
            select(other, asked)
    else:
        # Another kind has a variable of its own.
        with pytest.raises(NoBackendError):
            select(other)


@pytest.mark.parametrize(
    ("argument", "variable", "source"),
    [
        (None, None, "automatic"),
        ("second", None, "argument"),
        (None, "second", VARIABLE),
        ("first", "second", "argument"),
    ],
)
def test_b29_every_selection_says_once_who_chose(
    pair: Site, caplog: pytest.LogCaptureFixture, argument: str | None, variable: str | None, source: str
) -> None:
    """B29: one INFO record per kind and config, with backend and source."""
    if variable:
        pair.monkeypatch.setenv(VARIABLE, variable)
    with caplog.at_level(logging.INFO, "hardpoint"):
        for _ in range(3):
            found = select(config(), argument)
        hardpoint.resolve()
    (text,) = [item.getMessage() for item in caplog.records if "backend " in item.getMessage() and item.levelno == 20]
    assert found.source == source
    assert f"backend {found.backend} " in text
    assert source in text
    assert "head_size=64" in text


FAILURES = [
    ("ImportError('x.so: undefined symbol: _Z')", "ImportError: x.so: undefined symbol: _Z"),
    ("OSError('libcuda.so.1: cannot open shared object file')", "OSError: libcuda.so.1: cannot open"),
    ("PermissionError(13, 'Permission denied', '/ro/cache')", "/ro/cache"),
    ("ImportError()", "ImportError: (no message)"),
    ("OSError()", "OSError: (no message)"),
    ("ModuleNotFoundError(\"No module named 'kernels'\", name='kernels')", "ModuleNotFoundError: No module named"),
    ("TimeoutError('the daemon')", "TimeoutError: the daemon"),
    ("FileNotFoundError(2, 'No such file', '/dev/none')", "/dev/none"),
    ("EnvironmentFailure('no GPU', code='no_device')", "EnvironmentFailure: no GPU"),
]
# Everything through which a backend's own code can fail on the way to its class and its answer.
PLACES = {
    "import": {"top": "raise {error}"},
    "parent": {},
    "lookup": {"body": "", "top": "def __getattr__(name):\n    raise {error}\n"},
    "validate": {"validate": "raise {error}"},
    "property": {
        "top": "class Broken:\n    @property\n    def width(self):\n        raise {error}",
        "validate": "return [] if Broken().width else []",
    },
    "layout": {"body": "@classmethod\ndef kv_cache_spec(cls, config):\n    raise {error}"},
}


def broken(site: Site, place: str, error: str) -> tuple[str, str]:
    """Install `first`, which fails in that place, and `second`, which works; their packages."""
    site.platform("fake", priorities=FIRST)
    texts = {name: text.format(error=error) for name, text in PLACES[place].items()}
    package = site.backend("first", **texts)
    if place == "parent":
        # The package of the implementation, which the light module does not need.
        (site.folder / package / "inner").mkdir()
        (site.folder / package / "inner" / "__init__.py").write_text(
            f"from hardpoint import EnvironmentFailure\nraise {error}"
        )
        plugin = site.folder / package / "plugin.py"
        plugin.write_text(plugin.read_text().replace(".implementation:", ".inner.implementation:"))
    if place == "lookup":
        implementation = site.folder / package / "implementation.py"
        implementation.write_text(implementation.read_text().replace("class Backend(", "class Other("))
    second = site.backend("second")
    return package, second


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("error", "text"), FAILURES)
def test_b30_an_environment_failure_in_any_place(site: Site, place: str, error: str, text: str) -> None:
    """B30: the next backend with "Type: message" on record, twice alike; a ValueError with the cause by name."""
    broken(site, place, error)
    for _ in range(2):
        found = select(config())
        assert (found.backend, found.is_fallback) == ("second", True)
        assert text in reasons(found, "first")
        with pytest.raises(BackendUnavailableError) as caught:
            select(config(), "first")
        assert text in str(caught.value)
        assert isinstance(caught.value.__cause__, (ImportError, OSError))
        (candidate,) = [item for item in found.candidates if item.name == "first"]
        assert all(type(value) in {str, int, float, type(None)} for value in candidate.reasons[0].as_dict().values())


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "error",
    ["AttributeError('no attribute')", "TypeError()", "AssertionError()", "KeyError(1000)", "RuntimeError('bug')"],
)
@pytest.mark.parametrize("asked", [None, "first", ("first", "second"), ("first", "auto")])
def test_b30_a_programming_error_in_any_place(site: Site, place: str, error: str, asked: Any) -> None:
    """B30: itself, not wrapped, with a note; the next backend is not even imported; the second time alike."""
    _, second = broken(site, place, error)
    for _ in range(2):
        with pytest.raises(Exception) as caught:  # noqa: PT011  # its exact type is compared below
            select(config(), asked)
        assert type(caught.value).__name__ == error.partition("(")[0]
        assert any("backend/first (fake-first 1.0)" in note for note in caught.value.__notes__)
    assert not imported(second, "implementation")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("error", ["KeyboardInterrupt", "SystemExit", "GeneratorExit"])
@pytest.mark.parametrize("asked", [None, "first"])
def test_b30_an_interrupt_in_any_place(site: Site, place: str, error: str, asked: str | None) -> None:
    """B30: it passes, and the next attempt starts anew."""
    broken(site, place, error)
    with pytest.raises(BaseException) as caught:  # noqa: PT011  # its exact type is compared below
        select(config(), asked)
    assert type(caught.value).__name__ == error


def test_b30_a_repeated_probe_does_not_import_again(site: Site) -> None:
    """B30: the recorded outcome until `reset`; what is in `sys.modules` stays there; after it a new attempt."""
    counter = site.folder / "count"
    count = f"with open({str(counter)!r}, 'a') as file:\n    file.write('x')\nraise OSError('libx.so: no')"
    package, _ = broken(site, "import", "OSError()")
    implementation = site.folder / package / "implementation.py"
    implementation.write_text(count)
    before = set(sys.modules)
    for _ in range(3):
        assert select(config()).backend == "second"
        select(config(head_size=32))
    assert counter.read_text() == "x"
    assert before <= set(sys.modules)
    hardpoint.reset()
    assert select(config()).backend == "second"
    assert counter.read_text() == "xx"


@pytest.mark.parametrize(
    "answer", ["['head size']", "('head size',)", "[Reason(code='head_size', message='head size')]"]
)
def test_b30_a_refusal(site: Site, answer: str) -> None:
    """B30: the next one; by name a ValueError with the reason, which needs no cause."""
    site.platform("fake", priorities=FIRST)
    site.backend("first", validate=f"return {answer}")
    site.backend("second")
    assert reasons(select(config()), "first") == "head size"
    with pytest.raises(BackendUnavailableError, match="head size"):
        select(config(), "first")


@pytest.mark.parametrize("answer", ["None", "'head size'", "True", "[7]", "{'a': 1}", "iter([])"])
def test_b30_an_answer_that_is_no_list_of_reasons(site: Site, answer: str) -> None:
    """A contract error with the value: neither a bug of ours nor taken for a yes."""
    site.platform("fake", priorities=FIRST)
    site.backend("first", validate=f"return {answer}")
    site.backend("second")
    found = select(config())
    assert found.backend == "second"
    assert "expected a list of reasons" in reasons(found, "first")


def test_b31_an_override_after_the_first_selection(pair: Site) -> None:
    """B31: the variable set, changed, made empty and taken away is seen each time."""
    names = []
    for value in (None, "second", "first", "", "second,auto", " SECOND ", None):
        if value is None:
            pair.monkeypatch.delenv(VARIABLE, raising=False)
        else:
            pair.monkeypatch.setenv(VARIABLE, value)
        names.append(select(config()).backend)
    assert names == ["first", "second", "first", "first", "second", "second", "first"]


def test_b31_each_device_has_its_own_answer(site: Site) -> None:
    """B31: capability 8.0 and 9.0, in either order of asking."""
    site.platform("fake", detect=usable_each("8.0", "9.0"), priorities=FIRST)
    site.backend("first", more="capability_floor=(9, 0)")
    site.backend("second")
    platform = hardpoint.current_platform()
    for _ in range(2):
        assert platform.select_backend(config(), devices=0).backend == "second"
        assert platform.select_backend(config(), devices=1).backend == "first"
        assert platform.select_backend(config(), devices=[1, 0]).backend == "second"


def test_b31_other_settings_freeze_until_reset(pair: Site) -> None:
    """B31: a plugin disabled later, or strict mode, counts after `reset`, and the report says what counted."""
    platform = hardpoint.current_platform()
    assert platform.select_backend(config()).backend == "first"
    pair.monkeypatch.setenv("HARDPOINT_DISABLED_PLUGINS", "backend/first")
    assert platform.select_backend(config(head_size=32)).backend == "first"
    hardpoint.reset()
    assert select(config()).backend == "second"


def test_b31_every_argument_is_part_of_the_question(pair: Site) -> None:
    """B31: depth, devices, request and strictness each make another question."""
    options: list[dict[str, Any]] = [
        {}, {"depth": "static"}, {"depth": "ready"}, {"strict": True}, {"strict": False}, {"devices": 0},
    ]  # fmt: skip
    found = [select(config(), **option) for option in options]
    assert len({id(item) for item in found}) == len(options)
    assert [select(config(), **option) for option in options] == found
    assert select(config(), ["first", "auto"]).requested == ("first", "auto")
    assert select(config(), ["second"]).backend == "second"


@pytest.mark.parametrize("value", [[64], {"a": 1}, {64}, None, "64", 64.5, object()])
@pytest.mark.parametrize("field", ["head_size", "num_heads", "block_size", "dtype", "sliding_window", "soft_cap"])
def test_b31_a_config_holding_anything(pair: Site, field: str, value: Any) -> None:
    """B31: a list or dict in a config is a ConfigError that names the field, or a plain answer; never "unhashable"."""
    try:
        asked = config(**{field: value})
    except ConfigError as error:
        assert field in str(error)  # noqa: PT017  # raising is one of two right answers
        return
    assert select(asked).backend == "first"
    hash(asked)


@pytest.mark.parametrize(
    "requested", [[["first"]], [{"a": 1}], [None], {"first": 1}, ["first", 7], 7, b"first", object()]
)
def test_b31_a_request_holding_anything(pair: Site, requested: Any) -> None:
    """B31: what is no name is a SettingsError that shows it, never a TypeError of the cache."""
    if isinstance(requested, dict):
        assert select(config(), requested).backend == "first"
        return
    with pytest.raises(SettingsError, match="expected a name or a list of names"):
        select(config(), requested)


@pytest.mark.parametrize("devices", [[[0]], ["0"], 1.5, "0", [None], [True], object()])
def test_b31_devices_that_are_none(pair: Site, devices: Any) -> None:
    """A ConfigError, whatever it is."""
    with pytest.raises(ConfigError):
        select(config(), devices=devices)


def test_b31_the_cache_holds_no_engine(pair: Site) -> None:
    """B31: an object that made its requests, and its strings, can go."""

    class Name(str):  # noqa: SLOT000  # what it can carry is the point
        engine: object

    class Engine:
        pass

    engine = Engine()
    name = Name("second")
    name.engine = engine
    select(config(dtype=Name("float32")), name)
    select(config(), [name])
    gone = weakref.ref(engine)
    del engine, name
    gc.collect()
    assert gone() is None


def test_b31_a_plugin_registered_later_is_seen(site: Site) -> None:
    """B31: by every question, also one that has been answered."""
    site.platform("fake", priorities=FIRST)
    site.backend("second")
    package = site.backend("spare")
    platform = hardpoint.current_platform()
    site.monkeypatch.setenv("HARDPOINT_PLUGINS", ",".join([*site.allowed, "backend/first"]))
    assert platform.select_backend(config()).backend == "second"
    module = __import__(f"{package}.plugin", fromlist=["Plugin"])
    hardpoint.reset()
    platform = hardpoint.current_platform()
    assert platform.select_backend(config()).backend == "second"
    hardpoint.register("backend", "first", module.Plugin())
    assert platform.select_backend(config()).backend == "first"


def test_b33_an_explicit_backend_whose_library_is_missing(site: Site) -> None:
    """B33: a ValueError from an OSError, and nothing else is loaded."""
    site.platform("fake", priorities=FIRST)
    packages = [site.backend("first"), site.backend("second")]
    site.backend("cuda_x", top="import ctypes\nctypes.CDLL('libhardpoint_no_such_library.so.1')")
    for _ in range(2):
        with pytest.raises(ValueError, match="libhardpoint_no_such_library") as caught:
            select(config(), "cuda_x")
        assert isinstance(caught.value.__cause__, OSError)
    assert not any(imported(package, "implementation") for package in packages)


def test_b33_no_fallback_is_no_second_attempt(site: Site) -> None:
    """B33: strict mode stops at the first loss, with its cause; the next module is not imported."""
    site.platform("fake", priorities=FIRST)
    site.backend("first", top="raise OSError('libx.so: cannot open shared object file')")
    package = site.backend("second")
    site.monkeypatch.setenv("HARDPOINT_STRICT", "1")
    with pytest.raises(BackendUnavailableError, match=r"libx\.so") as caught:
        select(config())
    assert isinstance(caught.value.__cause__, OSError)
    assert not imported(package, "implementation")


def test_b33_available_means_probed(site: Site) -> None:
    """B33: a backend whose probe failed is not among the valid ones, and its reason is told."""
    site.platform("fake", priorities=FIRST)
    site.backend("first", top="raise OSError('libx.so: gone')")
    site.backend("second")
    valid, rejected = hardpoint.current_platform().get_valid_backends(None, config())
    assert [item.name for item in valid] == ["second"]
    assert rejected["first"].reasons[0].message == "OSError: libx.so: gone"


def test_b33_foreign_path_variables_change_nothing(pair: Site) -> None:
    """B33: nonsense in CUDA_PATH, CUDA_HOME and the like leaves every decision as it was."""
    before = (hardpoint.resolve().candidates, select(config()))
    for name in ("CUDA_PATH", "CUDA_HOME", "ROCM_PATH", "ROCM_HOME", "ORT_HOME"):
        pair.monkeypatch.setenv(name, "/nonsense\n;:")
    hardpoint.reset()
    assert (hardpoint.resolve().candidates, select(config())) == before


SPAWNING = """
import json, multiprocessing, sys
import hardpoint

def ask(name):
    config = hardpoint.AttentionConfig(head_size=64, num_heads=4, dtype="float32", block_size=16)
    hardpoint.current_platform().select_backend(config, name or None)

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        try:
            pool.apply(ask, sys.argv[1:])
        except ValueError as error:
            print(json.dumps([type(error).__name__, str(error), [item.name for item in error.candidates]]))
"""


@pytest.mark.parametrize("explicit", [False, True])
def test_b34_an_error_travels_from_a_spawned_child(site: Site, tmp_path: Path, explicit: bool) -> None:
    """B34: text, type and candidates are those that the child saw, with every line."""
    site.platform("fake", priorities=FIRST)
    site.backend("first", top="raise ImportError('libx.so: undefined symbol: _Z\\nneeded by liby.so\\n  and libz.so')")
    site.backend("second", validate="return ['no float32', 'no head_size=64']")
    program = tmp_path / "program.py"
    program.write_text(SPAWNING)
    done = subprocess.run(
        [sys.executable, str(program), "first" if explicit else ""],
        capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site.folder), *filter(None, sys.path)])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    name, text, candidates = json.loads(done.stdout)
    assert name == ("BackendUnavailableError" if explicit else "NoBackendError")
    for part in ("ImportError: libx.so: undefined symbol: _Z\nneeded by liby.so\n  and libz.so", "head_size=64"):
        assert part in text
    if not explicit:
        parts = ["first failed at import", "second rejected no float32\n", " no head_size=64\n"]
        # The longest name decides how wide a column is.
        positions = [re.sub(" +", " ", text).index(part) for part in parts]
        assert positions == sorted(positions)
    assert text.count("libx.so: undefined") == 1
    assert candidates[:2] == (["first"] if explicit else ["first", "second"])


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("7.5", (7, 5, "")), ("8.9", (8, 9, "")), ("10.0", (10, 0, "")), ("12.1", (12, 1, "")), ("sm_90a", (9, 0, "a")),
        ("sm_103a", (10, 3, "a")), ("sm_120f", (12, 0, "f")), ("121", (12, 1, "")), (120, (12, 0, "")),
        (75, (7, 5, "")),
        ("sm_75", (7, 5, "")), ("SM_90", (9, 0, "")), (" 9.0 ", (9, 0, "")),
        ("compute_90a", (9, 0, "a")), (90, (9, 0, "")),
        ((9, 0), (9, 0, "")), ("100", (10, 0, "")), ("sm_100a", (10, 0, "a")), ("5.2", (5, 2, "")),
    ],
)  # fmt: skip
def test_b35_parsing(asked: Any, expected: tuple[int, int, str]) -> None:
    """B35: dotted, lettered, two- and three-digit, text and number."""
    found = hardpoint.parse_compute_capability(asked)
    assert (found.major, found.minor, found.suffix) == expected


@pytest.mark.parametrize(
    "asked",
    [
        "",
        "sm_",
        None,
        "-1",
        -1,
        "x",
        "9",
        9,
        "sm_9",
        "9.",
        ".9",
        "9.0.1",
        [],
        {},
        True,
        "nan",
        9.0,
        b"9.0",
        "sm_90ab",
        0,
    ],
)
def test_b35_nonsense(asked: Any) -> None:
    """B35: a ValueError that shows the value, never -1."""
    with pytest.raises(ValueError, match=r".") as caught:
        hardpoint.parse_compute_capability(asked)
    assert repr(asked) in str(caught.value)


def test_b35_order() -> None:
    """B35: as numbers, in one runtime; any order of a list."""
    texts = ["7.5", "8.9", "9.0", "10.3", "12.0", "12.1"]
    ordered = [DeviceCapability.parse(text, runtime="cuda") for text in texts]
    for shuffled in itertools.islice(itertools.permutations(ordered), 50):
        assert sorted(shuffled) == ordered


@pytest.mark.parametrize(
    ("limits", "accepted", "refused"),
    [
        ("architectures=('sm_90', 'sm_90a')", ["9.0"], ["8.9", "10.0", "12.0", "12.1"]),
        ("capability_floor=(8, 0)", ["8.0", "8.9", "9.0", "10.0", "12.1"], ["7.5"]),
        ("architectures=('sm_100', 'sm_103')", ["10.0", "10.3"], ["9.0", "12.0", "12.1"]),
    ],
)
def test_b35_what_a_backend_lists(site: Site, limits: str, accepted: list[str], refused: list[str]) -> None:
    """B35: a Hopper-only backend rejects newer cards, a floor takes them, and GB10 is not datacentre Blackwell."""
    site.platform("fake", detect=usable_each(*accepted, *refused, runtime="cuda"))
    site.backend("only", more=limits)
    platform = hardpoint.current_platform()
    for index, version in enumerate([*accepted, *refused]):
        if version in accepted:
            assert platform.select_backend(config(), "only", devices=index).backend == "only"
        else:
            with pytest.raises(BackendUnavailableError, match="only"):
                platform.select_backend(config(), "only", devices=index)


@pytest.mark.parametrize("order", list(itertools.permutations(["8.6", "12.0", "9.0"])))
def test_b38_a_set_of_mixed_cards(site: Site, order: tuple[str, ...]) -> None:
    """B38: the answer is the same whichever card is index 0, and names the one that cannot."""
    site.platform("fake", detect=usable_each(*order, runtime="cuda"), priorities=FIRST)
    site.backend("first", more="capability_floor=(9, 0)")
    site.backend("second")
    old = order.index("8.6")
    found = select(config())
    assert found.backend == "second"
    assert f"device {old} (8.6)" in reasons(found, "first")
    with pytest.raises(ValueError, match=rf"device {old} \(8\.6\)"):
        select(config(), "first")
    others = [index for index in range(3) if index != old]
    assert select(config(), devices=others).backend == "first"
    assert select(config(), devices=old).backend == "second"


def test_b38_a_kernel_built_for_the_new_card_only(site: Site) -> None:
    """B38: architectures of the built kernels are checked on every card of the set."""
    site.platform("fake", detect=usable_each("8.6", "12.0", runtime="cuda"), priorities=FIRST)
    site.backend("first", spec="kernel_architectures=('sm_120',)")
    site.backend("second")
    found = select(config())
    assert found.backend == "second"
    assert "device 0 (8.6)" in reasons(found, "first")
    assert found.candidates[0].reasons[0].code is ReasonCode.KERNEL_ARCH
    assert select(config(), devices=1).backend == "first"


def test_b38_two_models_of_one_capability(site: Site) -> None:
    """B38: a different name is no difference."""
    detect = (
        "c = DeviceCapability.parse('9.0', runtime='cuda')\n"
        "names = 'H100', 'H200'\n"
        "return Detection.usable([Device(index=i, name=n, capability=c) for i, n in enumerate(names)])"
    )
    site.platform("fake", detect=detect)
    site.backend("first", more="capability_floor=(9, 0)")
    assert select(config()).backend == "first"


def test_nothing_valid_is_no_selection(site: Site) -> None:
    """An automatic choice among backends that all refuse is the error, and no candidate is marked as chosen."""
    site.platform("fake")
    site.backend("first", validate="return ['no']")
    with pytest.raises(NoBackendError) as caught:
        select(config())
    assert all(item.outcome is not Outcome.CHOSEN for item in caught.value.candidates)
    assert os.linesep not in str(caught.value.candidates[0].reasons[0])
