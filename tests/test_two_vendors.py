"""A machine with accelerators of two vendors, each with the plugin of this repository."""

from __future__ import annotations

import pytest

import hardpoint
from hardpoint.errors import AmbiguousPlatformError

pytestmark = pytest.mark.plugins


@pytest.mark.parametrize("spec", ["h100,mi300x", "mi300x:2,rtx-5090"])
@pytest.mark.parametrize(("build", "platform"), [("+cu128", "cuda"), ("+rocm6.4", "rocm"), ("+cpu", "cpu")])
def test_torchs_build_settles_it(spec: str, build: str, platform: str) -> None:
    """The platform that the installed torch is built for."""
    machine = hardpoint.simulate(spec, distributions={"torch": f"2.13.0{build}"})
    assert hardpoint.resolve(machine=machine).platform.name == platform


@pytest.mark.parametrize("torch", [None, "2.13.0"])
def test_nothing_settles_it(torch: str | None) -> None:
    """An error that names both plugins and the variable, and not the CPU; the variable then decides."""
    with pytest.raises(AmbiguousPlatformError, match="HARDPOINT_PLATFORM") as caught:
        hardpoint.resolve(machine=hardpoint.simulate("h100,mi300x", distributions={"torch": torch}))
    assert "platform/cuda" in str(caught.value)
    assert "platform/rocm" in str(caught.value)
    assert "platform/cpu" not in str(caught.value)
    variables = {"HARDPOINT_PLATFORM": "rocm"}
    machine = hardpoint.simulate("h100,mi300x", distributions={"torch": torch}, variables=variables)
    assert hardpoint.resolve(machine=machine).platform.name == "rocm"
