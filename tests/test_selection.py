"""Selecting a backend: order, explicit choices, fallback, mixed devices and the cache."""

from __future__ import annotations

import logging
import pickle
import re
from typing import Any

import pytest

import hardpoint
from hardpoint import Outcome, ReasonCode
from hardpoint.attention._config import FIELD_NAMES
from hardpoint.errors import (
    BackendUnavailableError,
    ConfigError,
    NoBackendError,
    SelectionError,
    SettingsError,
    UnknownBackendError,
)
from tests.plugins import Site, config, imported, usable_each

FIRST = "BackendPriority('first', 'fastest here'), BackendPriority('second', 'works everywhere')"


@pytest.fixture
def platform(site: Site) -> hardpoint.Platform:
    """A platform with one device that prefers `first` to `second`; no backend is installed yet."""
    site.platform("fake", priorities=FIRST)
    return hardpoint.current_platform()


def here() -> hardpoint.Platform:
    """The platform, resolved anew with the plugins that the test has added."""
    return hardpoint.current_platform()


def reasons_of(candidate: hardpoint.Candidate) -> str:
    """All reasons, in one text."""
    return "; ".join(reason.message for reason in candidate.reasons)


def candidate(selection: hardpoint.Selection, name: str) -> hardpoint.Candidate:
    """One candidate of a selection."""
    return next(item for item in selection.candidates if item.name == name)


def test_the_platforms_order_decides_and_says_why(site: Site) -> None:
    """The first valid one of the table wins; the others are on record with the reason of their rank."""
    site.platform("fake", priorities=FIRST)
    site.backend("second")
    site.backend("first")
    selection = here().select_backend(config())
    assert selection.backend == "first"
    assert candidate(selection, "first").rank_reason == "fastest here"
    assert candidate(selection, "second").outcome is Outcome.NOT_TRIED


def test_a_listed_backend_without_its_plugin_is_named_with_the_remedy(site: Site) -> None:
    """`not_installed`, quiet, with the command that brings it."""
    site.platform(
        "fake", priorities="BackendPriority('first', 'fastest', 'first-kernels'), BackendPriority('second', '')"
    )
    site.backend("second")
    selection = here().select_backend(config(), strict=True)
    missing = candidate(selection, "first")
    assert missing.outcome is Outcome.NOT_INSTALLED
    assert missing.reasons[0].remedy == "pip install first-kernels"
    assert not selection.is_fallback


def test_backends_outside_the_table_stand_where_they_ask_to(site: Site) -> None:
    """`before` and `after` place a backend that the table does not know; the rest come last, by name."""
    site.platform("fake", priorities=FIRST)
    for name, spec in (
        ("first", ""),
        ("second", ""),
        ("early", "order=Order(before=('first',))"),
        ("middle", "order=Order(after=('first',))"),
        ("zz_last", ""),
        ("aa_last", "order=Order(before=('nobody',))"),
        ("elsewhere", "order=Order(before=('first',), platforms=('another',))"),
    ):
        site.backend(name, spec=spec)
    valid, rejected = here().get_valid_backends(here().get_device_capability(), config())
    names = [item.name for item in valid]
    assert names[:4] == ["early", "first", "middle", "second"]
    assert set(names[4:]) == {"aa_last", "elsewhere", "zz_last"}
    assert not {name for name in rejected if name in names}


def test_the_order_does_not_depend_on_the_order_of_installation(site: Site) -> None:
    """Circular wishes and equal ones are settled by name."""
    from hardpoint._order import arrange
    from hardpoint.hookspecs import Order

    orders = {"a": Order(before=("b",)), "b": Order(before=("a",)), "c": Order(after=("t",)), "d": Order(after=("t",))}
    forwards = arrange(["t"], orders, "x")
    backwards = arrange(["t"], dict(reversed(orders.items())), "x")
    assert forwards == backwards
    assert sorted(forwards) == ["a", "b", "c", "d", "t"]


@pytest.mark.parametrize(
    ("failure", "reason", "cause"),
    [
        ("raise ImportError('x.so: undefined symbol: _Z')", "ImportError: x.so: undefined symbol: _Z", ImportError),
        (
            "raise OSError('libcuda.so.1: cannot open shared object file')",
            "OSError: libcuda.so.1: cannot open shared object file",
            OSError,
        ),
        ("raise PermissionError(13, 'Permission denied', '/ro/cache')", "/ro/cache", PermissionError),
        ("raise ImportError()", "ImportError: (no message)", ImportError),
        ("raise EnvironmentFailure('no GPU', code='no_device')", "EnvironmentFailure: no GPU", OSError),
    ],
)
@pytest.mark.parametrize("place", ["top", "validate", "body"])
def test_an_environment_failure_takes_the_next_candidate(
    site: Site, caplog: pytest.LogCaptureFixture, failure: str, reason: str, cause: type[Exception], place: str
) -> None:
    """B30: automatic goes on with the reason on record; explicit is a ValueError from the very exception."""
    arguments = {"top": failure} if place == "top" else {"validate": failure}
    if place == "body":
        # Inside a property that validate_configuration reads.
        arguments = {
            "top": f"class Helper:\n    @property\n    def cache(self):\n        {failure}\n",
            "validate": "return Helper().cache",
        }
    site.platform("fake", priorities=FIRST)
    site.backend("first", **arguments)
    site.backend("second")
    with caplog.at_level(logging.WARNING, "hardpoint"):
        selection = here().select_backend(config())
    assert selection.backend == "second"
    assert selection.is_fallback
    assert reason in reasons_of(candidate(selection, "first"))
    assert len([r for r in caplog.records if reason in r.getMessage() and "using second" in r.getMessage()]) == 1
    for _ in range(2):
        with pytest.raises(BackendUnavailableError) as caught:
            here().select_backend(config(), "first")
        assert reason in str(caught.value)
        assert isinstance(caught.value.__cause__, OSError if place == "top" else cause)
    hardpoint.reset()
    with pytest.raises(BackendUnavailableError) as caught:
        here().select_backend(config(), "first")
    assert isinstance(caught.value.__cause__, cause)


@pytest.mark.parametrize("failure", ["AttributeError", "TypeError", "AssertionError", "KeyError", "RuntimeError"])
@pytest.mark.parametrize("place", ["top", "validate", "prepare"])
def test_a_programming_error_propagates_as_itself(site: Site, failure: str, place: str) -> None:
    """B30: not wrapped, not skipped, and it says whose it is and how to go on without that plugin."""
    site.platform("fake", priorities=FIRST)
    site.backend("first", distribution="first-kernels", **{place: f"raise {failure}('wrong')"})
    second = site.backend("second")
    for requested in (None, "first", ["first", "second"]):
        with pytest.raises(Exception, match="wrong") as caught:
            here().select_backend(config(), requested, depth="ready" if place == "prepare" else "loaded")
        assert type(caught.value).__name__ == failure
        (note,) = caught.value.__notes__
        assert "backend/first (first-kernels 1.0)" in note
        assert "HARDPOINT_DISABLED_PLUGINS=backend/first" in note
    assert not imported(second, "implementation")


@pytest.mark.parametrize(
    "body",
    [
        """
        @property
        def torch_features(self):
            return {}["features"]
        """,
        """
        def kernel_modules(self):
            return {}["modules"]
        """,
    ],
    ids=["torch_features", "kernel_modules"],
)
def test_a_bug_of_the_platform_is_not_the_backends(site: Site, body: str) -> None:
    """What a backend's evaluation asks the platform for, the platform answers for."""
    site.platform("fake", priorities=FIRST, body=body)
    site.backend("first", spec='kernel_modules=("one",)')
    with pytest.raises(KeyError) as caught:
        here().select_backend(config())
    (note,) = caught.value.__notes__
    assert "HARDPOINT_DISABLED_PLUGINS=platform/fake" in note


def test_the_way_around_a_broken_plugin_works(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the note of a bug says to type is enough."""
    site.platform("fake", priorities=FIRST)
    site.backend("first", top="raise TypeError('wrong')")
    site.backend("second")
    monkeypatch.setenv("HARDPOINT_DISABLED_PLUGINS", "backend/first")
    selection = here().select_backend(config())
    assert selection.backend == "second"
    assert candidate(selection, "first").outcome is Outcome.BLOCKED


@pytest.mark.parametrize("interrupt", ["KeyboardInterrupt", "SystemExit", "GeneratorExit"])
@pytest.mark.parametrize("place", ["plugin_top", "top", "validate", "prepare"])
def test_an_interrupt_passes_untouched(site: Site, interrupt: str, place: str) -> None:
    """Neither recorded nor given a note."""
    site.platform("fake", priorities=FIRST)
    site.backend("first", **{place: f"raise {interrupt}('stop')"})
    site.backend("second")
    with pytest.raises(BaseException, match="stop") as caught:
        here().select_backend(config(), depth="ready" if place == "prepare" else "loaded")
    assert type(caught.value).__name__ == interrupt
    assert not hasattr(caught.value, "__notes__")


def test_a_refusal_lists_all_reasons(site: Site) -> None:
    """Texts and reasons from `validate_configuration`, in scan, list and explicit alike."""
    site.platform("fake", priorities=FIRST)
    site.backend(
        "first", validate="return ['head size', Reason(code='dtype', message='dtype float32', requested='float32')]"
    )
    site.backend("second")
    assert reasons_of(candidate(here().select_backend(config()), "first")) == "head size; dtype float32"
    with pytest.raises(BackendUnavailableError, match="rejected: head size; dtype float32") as caught:
        here().select_backend(config(), "first")
    assert caught.value.__cause__ is None
    assert here().select_backend(config(), ["first", "second"]).backend == "second"


def test_a_refused_backend_is_never_imported(site: Site) -> None:
    """Declared support is checked before the module is touched."""
    site.platform("fake", priorities=FIRST, detect=usable_each("7.5"))
    heavy = site.backend(
        "first", variants="AttentionVariant(capability_floor=(9, 0), head_size=Integers(), dtype=ANYTHING)"
    )
    foreign = site.backend("foreign", platforms="('cuda',)")
    site.backend("second")
    selection = here().select_backend(config(block_size=None))
    assert selection.backend == "second"
    assert reasons_of(candidate(selection, "first")) == "capability 7.5; needs >= 9.0"
    assert reasons_of(candidate(selection, "foreign")) == "runs on cuda; this platform is fake"
    assert not imported(heavy, "implementation")
    assert not imported(foreign, "implementation")


def test_static_depth_imports_no_backend(site: Site) -> None:
    """Only metadata and declared support."""
    site.platform("fake", priorities=FIRST)
    package = site.backend("first", top="raise AssertionError('imported')")
    assert here().select_backend(config(), depth="static").backend == "first"
    assert not imported(package, "implementation")


def test_ready_depth_prepares_under_the_same_rule(site: Site) -> None:
    """A cache that cannot be written or a compiler that is missing is met here, and the next candidate is taken."""
    site.platform("fake", priorities=FIRST)
    site.backend("first", prepare="raise PermissionError(30, 'Read-only file system', '/ro/cache')")
    site.backend("second")
    assert here().select_backend(config()).backend == "first"
    selection = here().select_backend(config(), depth="ready")
    assert selection.backend == "second"
    assert "/ro/cache" in reasons_of(candidate(selection, "first"))


def test_required_packages_are_checked_from_metadata(site: Site) -> None:
    """Missing is quiet and too old is a loss; both say what to type."""
    site.platform("fake", priorities=FIRST)
    missing = site.backend("first", spec="requires=('no-such-package-at-all>=2',)")
    old = site.backend("third", spec="requires=('pluggy>=99',), order=Order(before=('second',))")
    site.backend("second")
    selection = here().select_backend(config())
    assert selection.backend == "second"
    assert candidate(selection, "first").outcome is Outcome.NOT_INSTALLED
    assert candidate(selection, "first").reasons[0].remedy == "pip install 'no-such-package-at-all>=2'"
    too_old = candidate(selection, "third").reasons[0]
    assert too_old.code is ReasonCode.INCOMPATIBLE_DEPENDENCY
    assert too_old.message.startswith("found pluggy 1.")
    assert "needs >=99" in too_old.message
    assert not imported(missing, "implementation")
    assert not imported(old, "implementation")


def test_an_unknown_backend_is_answered_with_the_nearest_name(site: Site) -> None:
    """B29: the error lists the valid names, and case and hyphens do not matter."""
    site.platform("fake")
    site.backend("flash_attn")
    with pytest.raises(UnknownBackendError, match=r"unknown backend 'flsh_attn'; did you mean 'flash_attn'\?"):
        here().select_backend(config(), "flsh-attn")
    assert here().select_backend(config(), "FLASH-ATTN").backend == "flash_attn"
    with pytest.raises(ValueError, match="flash_attn"):
        here().select_backend(config(), "NOPE")


def test_the_variable_binds_and_the_argument_beats_it(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """B29, B31: an override set after the first selection counts, and who asked is on record."""
    site.platform("fake", priorities=FIRST)
    site.backend("first")
    site.backend("second")
    assert here().select_backend(config()).source == "automatic"
    monkeypatch.setenv("HARDPOINT_ATTENTION_BACKEND", "second")
    selection = here().select_backend(config())
    assert (selection.backend, selection.source) == ("second", "HARDPOINT_ATTENTION_BACKEND")
    with caplog.at_level(logging.INFO, "hardpoint"):
        selection = here().select_backend(config(), "first")
    assert (selection.backend, selection.source) == ("first", "argument")
    assert "backend=first (argument) is taken, not HARDPOINT_ATTENTION_BACKEND=second" in caplog.text
    assert "backend first (asked for by the argument: first)" in caplog.text
    monkeypatch.setenv("HARDPOINT_ATTENTION_BACKEND", "  ")
    assert here().select_backend(config()).source == "automatic"


def test_a_list_stays_inside_itself(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Not installed, failed and refused each give a WARNING and the next; then all are listed."""
    site.platform("fake", priorities=FIRST)
    site.backend("broken", top="raise ImportError('libx.so: undefined symbol')")
    site.backend("picky", validate="return ['no']")
    site.backend("first")
    site.backend("second")
    names = ["nobody", "broken", "picky"]
    with caplog.at_level(logging.WARNING, "hardpoint"):
        assert here().select_backend(config(), [*names, "second"]).backend == "second"
    for part in ("unknown backend 'nobody'", "undefined symbol", "picky: rejected: no"):
        assert part in caplog.text
    with pytest.raises(BackendUnavailableError) as caught:
        here().select_backend(config(), names)
    text = str(caught.value)
    assert text.index("unknown backend 'nobody'") < text.index("undefined symbol") < text.index("picky    rejected")
    assert here().select_backend(config(), [*names, "auto"]).backend == "first"
    with pytest.raises(SettingsError):
        here().select_backend(config(), ["auto", "first"])


def test_nothing_left_says_everything(site: Site) -> None:
    """B34: the error's own text has the config, every candidate and each reason, in order, and survives pickling."""
    site.platform("fake", priorities=FIRST)
    site.backend("first", top="raise ImportError('libx.so: undefined symbol\\nsecond line')")
    site.backend("second", validate="return ['head_size=64 is not for me', 'nor float32']")
    with pytest.raises(NoBackendError) as caught:
        here().select_backend(config())
    text = str(caught.value)
    parts = [
        "head_size=64",
        "first failed at import ImportError: libx.so",
        "second line",
        "second rejected head_size=64 is not for me\n",
        "nor float32\n",
    ]
    # How wide a column is, the longest name decides, of those too that are installed here and left out.
    narrow = re.sub(" +", " ", text)
    positions = [narrow.index(part) for part in parts]
    assert positions == sorted(positions)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == text
    assert copy.candidates == caught.value.candidates


def test_strict_mode_stops_at_the_first_loss(site: Site) -> None:
    """B33: no second attempt; a refusal is no loss."""
    site.platform("fake", priorities=FIRST)
    site.backend("first", top="raise OSError('libx.so: cannot open shared object file')")
    second = site.backend("second")
    with pytest.raises(BackendUnavailableError, match=r"libx\.so.*strict mode"):
        here().select_backend(config(), strict=True)
    assert not imported(second, "implementation")


def test_a_loss_below_the_winner_is_none(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """A broken backend that stands after the winner costs nothing and says nothing."""
    site.platform("fake", priorities=FIRST)
    site.backend("first")
    site.backend("second", top="raise OSError('libx.so: cannot open shared object file')")
    with caplog.at_level(logging.WARNING, "hardpoint"):
        assert not here().select_backend(config(), strict=True).is_fallback
    assert not caplog.records


@pytest.mark.parametrize("versions", [("8.6", "12.0"), ("12.0", "8.6")])
def test_a_set_of_devices_must_all_agree(site: Site, versions: tuple[str, str]) -> None:
    """B38: valid over the set is the intersection, whichever device is number 0."""
    site.platform("fake", detect=usable_each(*versions), priorities=FIRST)
    site.backend("first", more="capability_floor=(9, 0)")
    site.backend("second")
    selection = here().select_backend(config())
    assert selection.backend == "second"
    old = versions.index("8.6")
    assert reasons_of(candidate(selection, "first")) == f"device {old} (8.6): capability 8.6; needs >= 9.0"
    with pytest.raises(BackendUnavailableError, match=rf"device {old} \(8\.6\)"):
        here().select_backend(config(), "first")
    assert here().select_backend(config(), devices=1 - old).backend == "first"
    valid, rejected = here().get_valid_backends([d.capability for d in here().devices], config())
    assert [item.name for item in valid] == ["second"]
    assert "first" in rejected


def test_equal_capability_of_different_models_is_one(site: Site) -> None:
    """No rejection for a different name."""
    site.platform("fake", detect=usable_each("9.0", "9.0"), priorities=FIRST)
    site.backend("first", more="capability_floor=(9, 0)")
    assert here().select_backend(config()).backend == "first"


def test_an_unknown_capability_is_a_reason(site: Site) -> None:
    """B35: "capability unknown", not an assertion."""
    site.platform("fake", detect="return Detection.usable([Device(index=0, name='?')])", priorities=FIRST)
    site.backend("first", more="capability_floor=(9, 0)")
    site.backend("second")
    assert reasons_of(candidate(here().select_backend(config()), "first")) == "capability unknown"


def test_a_device_that_does_not_exist_is_named(platform: hardpoint.Platform) -> None:
    """A wrong index is a clear error, and so is an empty list."""
    with pytest.raises(ConfigError, match="fake has no device 3"):
        platform.select_backend(config(), devices=3)
    with pytest.raises(ConfigError, match="devices is empty"):
        platform.select_backend(config(), devices=[])


def test_a_repeated_question_is_answered_from_memory(site: Site) -> None:
    """B31: equal configs share an entry, and a config that differs in any field does not."""
    site.platform("fake", priorities=FIRST)
    site.backend("first")
    one = here().select_backend(config())
    assert here().select_backend(config()) is one
    assert here().select_backend(config(), devices=[0], depth="static") is not one
    changed: dict[str, Any] = {
        "kind": "mla_attention",
        "head_size": 32,
        "v_head_size": 32,
        "num_heads": 8,
        "num_kv_heads": 2,
        "dtype": "float16",
        "kv_cache_dtype": "int8",
        "block_size": 8,
        "attention_type": "encoder_only",
        "causal": False,
        "sliding_window": 5,
        "sinks": True,
        "alibi": True,
        "soft_cap": 3.0,
        "kv_sharing": True,
        "batch_invariant": True,
        "max_model_len": 7,
    }
    assert set(changed) | {"kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim"} == set(FIELD_NAMES)
    del changed["kind"]
    for name, value in changed.items():
        assert here().select_backend(config(**{name: value})) is not one


def test_a_failure_is_not_kept_and_a_later_plugin_is_seen(site: Site) -> None:
    """B31: what was registered after the first call takes part."""
    site.platform("fake", priorities=FIRST)
    site.allow("backend/first")
    platform = here()
    with pytest.raises(SelectionError):
        platform.select_backend(config())
    package = site.backend("second")
    platform = here()
    assert platform.select_backend(config()).backend == "second"
    module = __import__(f"{package}.plugin", fromlist=["Plugin"])
    site.monkeypatch.setattr(module.Plugin, "other", None, raising=False)
    hardpoint.register("backend", "first", module.Plugin())
    assert platform.select_backend(config()).backend == "first"


def test_a_platform_without_selectable_backends_says_so(site: Site) -> None:
    """A proper answer: attention lives inside the compiled graph."""
    site.platform("fake", body="attention_note = 'attention lives in the compiled graph'")
    site.backend("first")
    selection = here().select_backend(config())
    assert selection.backend is None
    assert "attention lives in the compiled graph" in selection.explain()
    assert here().get_valid_backends(None, config()) == ([], {})
    with pytest.raises(BackendUnavailableError, match="compiled graph"):
        here().select_backend(config(), "first")


def test_a_selection_is_data_that_travels(site: Site) -> None:
    """It pickles without the class, and loads the class where it arrives."""
    site.platform("fake", priorities=FIRST)
    package = site.backend("first")
    selection = pickle.loads(pickle.dumps(here().select_backend(config())))
    assert selection == here().select_backend(config())
    assert selection.load().__module__ == f"{package}.implementation"
    assert selection.layout == "key:block-token-head-content:float32"


def test_a_shared_cache_keeps_its_backend_and_layout(site: Site) -> None:
    """A layer that reads another's cache is selected by that layer's selection."""
    site.platform("fake", priorities=FIRST)
    site.backend("first", validate="return ['not for sharing'] if config.kv_sharing else []")
    site.backend("second")
    target = here().select_backend(config(), "second")
    assert here().select_backend(config(kv_sharing=True), target).backend == "second"
    with pytest.raises(BackendUnavailableError, match="not for sharing"):
        here().select_backend(config(kv_sharing=True), here().select_backend(config()))
    with pytest.raises(BackendUnavailableError, match="would read the shared cache as"):
        here().select_backend(config(kv_sharing=True, kv_cache_dtype="int8"), target)


def test_one_failing_backend_among_33_leaves_the_others(site: Site) -> None:
    """The other 32 are probed."""
    site.platform("fake")
    for number in range(33):
        site.backend(f"b{number:02}", top="raise OSError('libx.so: no')" if number == 7 else "")
    valid, rejected = here().get_valid_backends(here().get_device_capability(), config())
    assert len([item for item in valid if item.name.startswith("b")]) == 32
    assert reasons_of(rejected["b07"]) == "OSError: libx.so: no"


def test_wrong_questions_are_clear_errors(platform: hardpoint.Platform) -> None:
    """No AttributeError from the middle."""
    with pytest.raises(ConfigError, match="expected an AttentionConfig"):
        platform.select_backend("attention")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="depth='deep': known are static, loaded, ready"):
        platform.select_backend(config(), depth="deep")
    with pytest.raises(ConfigError, match="known are static, loaded, ready"):
        platform.select_backend(config(), depth=["ready"])  # type: ignore[arg-type]
    for wrong in ((9, 0), "9.0", [90]):
        with pytest.raises(ConfigError, match="expected a DeviceCapability"):
            platform.get_valid_backends(wrong, config())  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="expected a name or a list of names"):
        platform.select_backend(config(), [7])  # type: ignore[list-item]


def test_a_place_between_two() -> None:
    """After one and before another; where both cannot be had, the earlier place."""
    from hardpoint._order import arrange
    from hardpoint.hookspecs import Order

    table = ["a", "b", "c"]
    assert arrange(table, {"x": Order(after=("a",), before=("c",))}, "p") == ["a", "x", "b", "c"]
    assert arrange(table, {"x": Order(after=("c",), before=("a",))}, "p") == ["x", "a", "b", "c"]
    assert arrange(table, {"x": Order(after=("nobody",))}, "p") == ["a", "b", "c", "x"]
    circle = {"x": Order(after=("y",)), "y": Order(after=("x",))}
    assert arrange(table, circle, "p") == ["a", "b", "c", "x", "y"]
