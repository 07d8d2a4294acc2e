"""Hints: what is wrong or could be better, each with the one thing to do."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

import hardpoint
from hardpoint import InMemoryMachine
from hardpoint._hardware import find_hardware, known_accelerators
from hardpoint._hint_remedies import remedy_for
from hardpoint._hints import SEVERITIES
from tests.plugins import config

if TYPE_CHECKING:
    from tests.plugins import Site

FIRST = "BackendPriority('first', 'fastest', 'hardpoint-first'), BackendPriority('second', 'everywhere')"


def machine(site: Site, *functions: tuple[str, str, str], **more: Any) -> InMemoryMachine:
    """A machine with these PCI functions (vendor, device, class), on which the test's plugins are allowed."""
    files = dict(more.pop("files", {}))
    for number, facts in enumerate(functions):
        folder = f"/sys/bus/pci/devices/0000:{number:02x}:00.0"
        files |= {
            f"{folder}/{name}": f"{fact}\n" for name, fact in zip(("vendor", "device", "class"), facts, strict=True)
        }
    variables = {"HARDPOINT_PLUGINS": ",".join(site.allowed), "HOME": "/home/u", **more.pop("variables", {})}
    return InMemoryMachine(files=files, directories=["/home/u"], variables=variables, **more)


def alone(site: Site) -> None:
    """Leave nothing installed but the test's own plugins."""
    site.monkeypatch.setattr(sys, "path", [entry for entry in sys.path if "site-packages" not in entry])
    hardpoint.reset()


def hints(report: hardpoint.Report) -> list[tuple[str, str, str | None]]:
    """Severity, message and remedy of each."""
    return [(item["severity"], item["message"], item["remedy"]) for item in report.as_dict()["hints"]]


NVIDIA = ("0x10de", "0x2330", "0x030200")
TENSTORRENT = ("0x1e52", "0x401e", "0x120000")
BRIDGE = ("0x10de", "0x1af1", "0x068000")


def test_hardware_whose_plugin_is_missing(site: Site) -> None:
    """Named by the PCI bus, with the distribution to install, or with whom to ask."""
    site.platform("host", rank="CPU")
    alone(site)
    found = hints(hardpoint.inspect(machine=machine(site, NVIDIA, NVIDIA, TENSTORRENT, BRIDGE)))
    assert found[:2] == [
        (
            "warning",
            "NVIDIA GPU is here (PCI 0000:00:00.0) and no plugin for it is installed; host is used instead",
            "pip install hardpoint-cuda",
        ),
        (
            "warning",
            (
                "Tenstorrent accelerator is here (PCI 0000:02:00.0) and no plugin for it is installed; "
                "host is used instead"
            ),
            "ask its vendor for a hardpoint plugin",
        ),
    ]


@pytest.mark.parametrize("entry", known_accelerators(), ids=lambda entry: entry["platform"])
def test_every_known_accelerator_can_be_seen(entry: dict[str, Any]) -> None:
    """By each of its PCI rules, and by each of its device nodes."""
    for rule in entry["pci"]:
        kinds = [(rule["vendor"], device, "0xff0000") for device in rule.get("devices", ())]
        kinds += [(rule["vendor"], "0x0001", f"{kind}00") for kind in rule.get("classes", ())]
        for vendor, device, kind in kinds:
            folder = "/sys/bus/pci/devices/0000:00:00.0"
            files = {f"{folder}/vendor": vendor, f"{folder}/device": device, f"{folder}/class": kind}
            (found,) = find_hardware(InMemoryMachine(files=files))
            assert (found["platform"], found["count"]) == (entry["platform"], 1)
    for node in entry["nodes"]:
        (found,) = find_hardware(InMemoryMachine(files={node: ""}))
        assert (found["platform"], found["count"], found["evidence"]) == (entry["platform"], None, [node])


def test_other_functions_of_a_vendor_are_no_accelerators() -> None:
    """A bridge, an audio function, a network card, a bus that cannot be read."""
    folder = "/sys/bus/pci/devices/0000:00:00.0"
    for vendor, kind in (("0x10de", "0x040300"), ("0x8086", "0x030000"), ("0x1d0f", "0x020000"), ("0x10de", "")):
        files: dict[str, Any] = {f"{folder}/vendor": vendor, f"{folder}/device": "0x1", f"{folder}/class": kind}
        assert find_hardware(InMemoryMachine(files=files)) == []
    assert find_hardware(InMemoryMachine(files={f"{folder}/vendor": PermissionError(13, "no")})) == []
    assert find_hardware(InMemoryMachine()) == []


def test_hardware_that_stands_idle(site: Site) -> None:
    """Because another platform was asked for, or its plugin is left out: said once, with what would change it."""
    site.platform("cuda")
    site.platform("cpu", rank="CPU")
    alone(site)
    idle = machine(site, NVIDIA, variables={"HARDPOINT_PLATFORM": "cpu"})
    assert hints(hardpoint.inspect(machine=idle))[0] == (
        "advice",
        "NVIDIA GPU is here (PCI 0000:00:00.0) and stands idle: HARDPOINT_PLATFORM asks for cpu",
        "unset HARDPOINT_PLATFORM",
    )
    banned = machine(site, NVIDIA, variables={"HARDPOINT_DISABLED_PLUGINS": "platform/cuda"})
    found = hints(hardpoint.inspect(machine=banned))
    assert any("is left out" in text and "cpu is used instead" in text for _, text, _ in found)
    assert hints(hardpoint.inspect(machine=machine(site, NVIDIA))) == []


def test_a_mask_that_hides_devices(site: Site) -> None:
    """Counted against the PCI bus."""
    site.platform("cuda", body="device_control_env_vars = ('CUDA_VISIBLE_DEVICES',)")
    alone(site)
    masked = machine(site, NVIDIA, NVIDIA, NVIDIA, variables={"CUDA_VISIBLE_DEVICES": "1"})
    assert hints(hardpoint.inspect(machine=masked)) == [
        ("advice", "CUDA_VISIBLE_DEVICES=1 hides 2 of 3 devices", "unset CUDA_VISIBLE_DEVICES to use all of them")
    ]
    assert hints(hardpoint.inspect(machine=machine(site, NVIDIA, NVIDIA))) == []


def test_a_better_backend_that_is_lost(site: Site) -> None:
    """Too old, missing or broken: what it is, what is used instead, and the command."""
    site.platform("chip", priorities=FIRST)
    site.backend("first", spec="requires=('fast-kernels>=2',)")
    site.backend("second")
    old = machine(site, distributions={"fast-kernels": "1.0"})
    assert hints(hardpoint.inspect([config()], machine=old)) == [
        (
            "warning",
            "backend first is lost (declared support): found fast-kernels 1.0, needs >=2; second is used instead",
            "pip install 'fast-kernels>=2'",
        )
    ]
    assert hints(hardpoint.inspect([config()], machine=machine(site))) == [
        (
            "advice",
            "backend first is not installed: fast-kernels is not installed; needs >=2; second is used instead",
            "pip install 'fast-kernels>=2'",
        )
    ]
    whole = machine(site, distributions={"fast-kernels": "2.1"})
    assert hints(hardpoint.inspect([config()], machine=whole)) == []


@pytest.mark.parametrize(("block_size", "is_told"), [(16, True), (256, False), (None, False)])
def test_a_better_backend_with_another_block_size(site: Site, block_size: int | None, is_told: bool) -> None:
    """The one value that would get it, where that alone is in the way."""
    site.platform("chip", priorities=FIRST)
    limits = (
        "head_size=ANYTHING, num_kv_heads=ANYTHING, dtype=ANYTHING, block_size=Integers(multiple_of=256, or_none=True)"
    )
    site.backend("first", variants=f"AttentionVariant({limits})")
    site.backend("second")
    told = (
        "advice",
        "backend first stands before second and refuses block_size=16",
        "block_size: a multiple of 256 (or none)",
    )
    asked = config(block_size=block_size)
    assert hints(hardpoint.inspect([asked], machine=machine(site))) == ([told] if is_told else [])
    # Where more is in the way, one value would not help.
    windowed = config(block_size=block_size, sliding_window=8)
    assert hints(hardpoint.inspect([windowed], machine=machine(site))) == []


def test_a_loss_behind_the_chosen_one_is_none(site: Site) -> None:
    """What stands after it costs nothing."""
    site.platform("chip", priorities="BackendPriority('second', 'best'), BackendPriority('first', 'last')")
    site.backend("first", spec="requires=('fast-kernels>=2',)")
    site.backend("second")
    assert hints(hardpoint.inspect([config()], machine=machine(site))) == []


def test_no_plugin_is_installed(site: Site) -> None:
    """What to install."""
    alone(site)
    assert hints(hardpoint.inspect(machine=machine(site))) == [
        (
            "error",
            "no platform plugin is installed",
            "pip install hardpoint-cpu (or the plugin of your accelerator)",
        )
    ]


def test_a_platform_without_selectable_attention_lacks_nothing(site: Site) -> None:
    """Its own words are a proper answer."""
    site.platform("chip", body="attention_note = 'attention lives in the compiled graph'")
    assert hints(hardpoint.inspect([config()], machine=machine(site))) == []


def test_the_gravest_come_first(site: Site) -> None:
    """Bugs, errors, warnings, advice; none twice; the plain text begins with them."""
    site.platform("buggy", detect="return 1 / 0")
    site.platform("lost", detect="raise OSError('libl.so: cannot open shared object file')")
    site.platform("host", rank="CPU", api="None")
    site.backend("first", variants="AttentionVariant(head_size=Integers(maximum=8))")
    report = hardpoint.inspect(
        [config(), config(head_size=32)], machine=machine(site, variables={"HARDPOINT_STRIKT": "1"})
    )
    found = report.as_dict()["hints"]
    ranks = [SEVERITIES.index(item["severity"]) for item in found]
    assert ranks == sorted(ranks)
    assert set(ranks) == {0, 1, 2, 3}
    assert len({str(item) for item in found}) == len(found)
    lines = report.to_text().splitlines()
    assert lines[0].startswith("BUG in platform/buggy")
    assert lines[1].startswith("error: no attention backend is valid on host")
    assert "HARDPOINT_STRIKT has no effect: did you mean HARDPOINT_STRICT?" in report.to_text()


def test_a_backend_that_is_asked_for_and_refuses(site: Site) -> None:
    """No backend, and the reason of the one that was asked for."""
    site.platform("chip", priorities=FIRST)
    site.backend("first")
    site.backend("second")
    alone(site)
    report = hardpoint.inspect([config()], machine=machine(site), backend="nobody")
    assert hints(report)[0][:2] == (
        "error",
        (
            "no attention backend is valid on chip: nobody: head size 64, 4 heads, float32 (nobody: unknown backend "
            "'nobody'. Installed: first, second)"
        ),
    )
    (selection,) = report.as_dict()["selections"]
    assert [item["outcome"] for item in selection["candidates"] if item["name"] in ("first", "second")] == ["valid"] * 2


def test_a_backend_that_is_asked_for_says_all_that_is_against_it(site: Site) -> None:
    """Not what is against the others; and what would do is named, with the variable that asked."""
    site.platform("chip", priorities="BackendPriority('fast', 'x'), BackendPriority('slow', 'y')")
    limits = "head_size=ANYTHING, num_kv_heads=ANYTHING, dtype=ANYTHING, block_size=Integers(multiple_of=32)"
    site.backend("fast", spec="requires=('no-such-package>=2',)", variants=f"AttentionVariant({limits})")
    site.backend("other", spec="requires=('neither-this-one',)")
    site.backend("slow")
    alone(site)
    for name, variables, how in (
        ("fast", {}, "ask for"),
        (None, {"HARDPOINT_ATTENTION_BACKEND": "fast"}, "set HARDPOINT_ATTENTION_BACKEND to"),
    ):
        found = hints(hardpoint.inspect([config()], machine=machine(site, variables=variables), backend=name))
        (error,) = [item for item in found if item[0] == "error"]
        assert "(fast: no-such-package is not installed; needs >=2 and block_size=16; accepts a multiple" in error[1]
        assert error[2] == f"{how} slow"
    site.backend("quick", spec="requires=('no-such-package>=2',)")
    hardpoint.reset()
    (error, *_) = hints(hardpoint.inspect([config()], machine=machine(site), backend=["quickk", "quick"]))
    assert "quickk: unknown backend 'quickk'; did you mean 'quick'?" in error[1]
    assert error[2] == "pip install 'no-such-package>=2'; or ask for slow"


def test_plugins_that_are_named_and_not_there(site: Site) -> None:
    """Among the allowed and among the disabled; with what was meant, of either kind."""
    site.platform("chip")
    site.backend("plain")
    alone(site)
    variables = {"HARDPOINT_PLUGINS": "fake-chip,fake-plainn", "HARDPOINT_DISABLED_PLUGINS": "plain,zzz"}
    found = hints(hardpoint.inspect([config()], machine=machine(site, variables=variables)))
    names = "which is neither an installed plugin nor its distribution"
    for told in (
        ("warning", f"HARDPOINT_PLUGINS names 'fake-plainn', {names}", "write fake-plain"),
        ("warning", f"HARDPOINT_DISABLED_PLUGINS names 'plain', {names}", "write backend/plain"),
        ("warning", f"HARDPOINT_DISABLED_PLUGINS names 'zzz', {names}", "take it out of HARDPOINT_DISABLED_PLUGINS"),
    ):
        assert told in found


@pytest.mark.parametrize(
    ("code", "message", "said"),
    [
        ("driver", "NVML: driver/library version mismatch", "make the driver one version"),
        ("driver", "NVML: GPU is lost", "reset the device or reboot"),
        ("driver", "cuInit: system not yet initialized (error 802)", "start the service that initialises the devices"),
        ("driver", "unknown error (error 999)", "see what the driver says (dmesg)"),
        (
            "crashed",
            "crashed with SIGSEGV running x:y for probe 'a.b'",
            "the vendor's library crashes when it is asked",
        ),
        ("crashed", "crashed with SIGSEGV", "pip install --force-reinstall fake-x"),
        ("missing_dependency", "ModuleNotFoundError: No module named 'flash_attn.cute'", "pip install flash-attn"),
        (
            "missing_dependency",
            "ModuleNotFoundError: No module named 'fake_x.nowhere'",
            "its own package is incomplete",
        ),
        # Whoever has that name on an index is not who is meant.
        (
            "missing_dependency",
            "ModuleNotFoundError: No module named 'own_kernels'",
            "install what brings the module own",
        ),
    ],
)
def test_a_remedy_fits_what_was_said(code: str, message: str, said: str) -> None:
    """Of causes with one code, each has its own."""
    provenance = {"plugin": "platform/x", "distribution": "fake-x"}
    assert (remedy_for({"code": code, "message": message}, provenance) or "").startswith(said)


def test_platforms_that_are_not_among_the_allowed_are_told_together(site: Site) -> None:
    """One line for all of them, where nothing else can be used; a single one has its own."""
    site.platform("one")
    site.platform("two")
    alone(site)
    asked = machine(site, variables={"HARDPOINT_PLUGINS": "platform/other"})
    found = hints(hardpoint.inspect(machine=asked))
    message = "HARDPOINT_PLUGINS leaves out platform/one, platform/two"
    assert found[1] == ("warning", message, "add what is wanted of them to HARDPOINT_PLUGINS, or unset it")
    assert [severity for severity, _, _ in found] == ["error", "warning"]
    asked = machine(site, variables={"HARDPOINT_PLUGINS": "platform/other", "HARDPOINT_DISABLED_PLUGINS": "fake-two"})
    assert "platform/one (fake-one 1.0) is not among HARDPOINT_PLUGINS" in str(hints(hardpoint.inspect(machine=asked)))
