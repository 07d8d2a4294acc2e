"""What a backend asks for beside its declared support: kernels, architectures, torch features, answers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

import hardpoint
from hardpoint import Outcome, ReasonCode
from tests.plugins import config, imported, usable_each

if TYPE_CHECKING:
    from tests.plugins import Site

KERNELS = """
def kernel_modules(self):
    return (
        KernelModule(name="no_such_package._optional", distribution="optional-kernels"),
        KernelModule(name="broken_kernels_of_a_test", group="fast"),
    )
"""


def rejected(name: str, depth: str = "loaded") -> hardpoint.Candidate:
    """The record of a backend that is not valid."""
    platform = hardpoint.current_platform()
    capabilities = [device.capability for device in platform.devices]
    return platform.get_valid_backends(capabilities, config(), depth=depth)[1][name]


def test_only_backends_that_declared_a_lost_module_are_rejected(site: Site) -> None:
    """With the module's own reason; an absent one is quiet, a broken one is a loss."""
    (site.folder / "broken_kernels_of_a_test.py").write_text("raise ImportError('libk.so: undefined symbol: _Z3fooi')")
    site.platform("fake", body=KERNELS)
    needs_optional = site.backend("needs_optional", spec="kernel_modules=('no_such_package._optional',)")
    site.backend("needs_fast", spec="kernel_modules=('fast',)")
    site.backend("needs_nothing")
    absent = rejected("needs_optional")
    assert (absent.outcome, absent.reasons[0].code) == (Outcome.NOT_INSTALLED, ReasonCode.NOT_INSTALLED)
    assert "optional-kernels" in str(absent.reasons[0].remedy)
    assert not imported(needs_optional, "implementation")
    hardpoint.current_platform().import_kernels()
    broken = rejected("needs_fast")
    assert broken.outcome is Outcome.FAILED
    assert "undefined symbol: _Z3fooi" in broken.reasons[0].message
    selection = hardpoint.current_platform().select_backend(config(), ["needs_fast", "needs_nothing"], depth="ready")
    assert selection.backend == "needs_nothing"


def test_what_speaks_against_kernels_is_asked_once(site: Site) -> None:
    """A live machine looks for their distributions: not anew for each configuration, but anew after `reset`."""
    counted = KERNELS.replace("    return (", "    asked.append(self.name)\n    return (")
    package = site.platform("fake", platform_top="asked = []", body=counted)
    site.backend("needs_optional", spec="kernel_modules=('no_such_package._optional',)")
    site.backend("needs_nothing")
    for _ in range(2):
        hardpoint.reset()
        platform = hardpoint.current_platform()
        for head_size in (16, 32, 64):
            platform.select_backend(config(head_size=head_size), ["needs_optional", "needs_nothing"])
    assert sys.modules[f"{package}.platform"].asked == ["fake", "fake"]


def test_built_architectures_are_checked_before_the_import(site: Site) -> None:
    """A binary for another architecture would end the process; metadata refuse it."""
    site.platform("fake", detect=usable_each("8.6"))
    package = site.backend("hopper", spec="kernel_architectures=('sm_90a', 'sm_100*')")
    refused = rejected("hopper")
    assert refused.reasons[0].code is ReasonCode.KERNEL_ARCH
    assert refused.reasons[0].message == "its kernels are built for sm_90a or sm_100*, not for sm_86"
    assert not imported(package, "implementation")
    site.backend("ampere", spec="kernel_architectures=('sm_8*',)")
    valid, _ = hardpoint.current_platform().get_valid_backends(
        hardpoint.current_platform().get_device_capability(), config()
    )
    assert "ampere" in [item.name for item in valid]


def test_a_generic_backend_needs_the_platforms_torch_features(site: Site) -> None:
    """`torch-device` serves any platform that declares them, and none that declares nothing."""
    site.platform("fake")
    site.backend("generic", spec="torch_features=('aten', 'sdpa')")
    assert rejected("generic").reasons[0].message == "platform fake does not declare sdpa"
    site.platform("bare", body="torch_features = frozenset()", rank="CPU")
    site.backend("plain")
    bare = hardpoint.platform("bare")
    _, out = bare.get_valid_backends(bare.get_device_capability(), config())
    assert out["plain"].reasons[0].message == "platform bare does not declare any torch feature"


@pytest.mark.parametrize("answer", ["None", "'head size'", "[7]", "{}"])
def test_what_a_validation_may_answer_is_checked(site: Site, answer: str) -> None:
    """A list of reasons or texts; anything else is a contract error that shows it."""
    site.platform("fake")
    site.backend("odd", validate=f"return {answer}")
    found = rejected("odd")
    assert found.outcome is Outcome.CONTRACT
    assert "expected a list of reasons" in found.reasons[0].message


def test_a_refusal_outweighs_a_missing_package(site: Site) -> None:
    """A backend that could not serve the request anyway is rejected, not "not installed", with every reason."""
    site.platform("fake")
    site.backend(
        "small",
        variants="AttentionVariant(head_size=Integers(maximum=32), dtype=ANYTHING, block_size=ANYTHING)",
        spec="requires=('no-such-package-at-all',)",
    )
    found = rejected("small")
    assert found.outcome is Outcome.REJECTED
    assert {reason.code for reason in found.reasons} == {ReasonCode.MISSING_DEPENDENCY, ReasonCode.HEAD_SIZE}
