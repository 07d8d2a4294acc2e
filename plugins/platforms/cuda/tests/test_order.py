from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from hardpoint import EnvironmentFailure, InMemoryMachine
from hardpoint_cuda.plugin import plugin

if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[..., InMemoryMachine]
    Card = Callable[..., dict[str, Any]]
    Probed = Callable[..., dict[str, Any]]


@pytest.fixture
def two(card: Card) -> list[dict[str, Any]]:
    """NVML's order: a display card first, then the one to compute with."""
    return [
        card(0, name="NVIDIA RTX PRO 2000", capability=[12, 0]),
        card(1, name="NVIDIA B300", capability=[10, 3]),
    ]


def versions(machine: InMemoryMachine) -> list[tuple[int, int] | None]:
    """The compute capabilities in logical order."""
    found = plugin.hardpoint_detect(machine).devices
    return [None if device.capability is None else device.capability.version for device in found]


@pytest.mark.parametrize("order", [None, "FASTEST_FIRST", "", "pci_bus_id"])
def test_driver_is_asked_where_models_differ(
    make_machine: Make, probed: Probed, two: list[dict[str, Any]], order: str | None
) -> None:
    """B05: devices are matched with the driver's by id, never by number, and nothing is created for it."""
    driver = probed([{**two[1], "index": 0}, {**two[0], "index": 1}])
    variables = {} if order is None else {"CUDA_DEVICE_ORDER": order}
    machine = make_machine(two, driver=driver, variables=variables)
    assert versions(machine) == [(10, 3), (12, 0)]
    assert [device.physical_id for device in plugin.hardpoint_detect(machine).devices] == [1, 0]


def test_addresses_match_where_ids_do_not(make_machine: Make, probed: Probed, two: list[dict[str, Any]]) -> None:
    """B05: without an id, the PCI address tells which is which, however it is written."""
    driver = probed([{**two[1], "uuid": None, "pci_bus_id": "0000:11:00.0"}, {**two[0], "uuid": None}])
    assert versions(make_machine(two, driver=driver)) == [(10, 3), (12, 0)]


def test_order_by_address(make_machine: Make, card: Card) -> None:
    """B05: with CUDA_DEVICE_ORDER=PCI_BUS_ID nobody is asked, and the address counts, not NVML's number."""
    cards = [
        card(0, name="B", pci_bus_id="00000001:01:00.0", capability=[9, 0]),
        card(1, name="A", pci_bus_id="00000000:F1:00.0", capability=[8, 0]),
    ]
    machine = make_machine(cards, variables={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert versions(machine) == [(8, 0), (9, 0)]
    assert machine.questions["probe cuda.driver"] == 0


def test_mask_counts_in_cudas_order(make_machine: Make, probed: Probed, two: list[dict[str, Any]]) -> None:
    """Numbers of the mask are CUDA's, so 0 is what the driver puts first."""
    driver = probed([two[1], two[0]])
    assert versions(make_machine(two, driver=driver, mask="0")) == [(10, 3)]
    assert versions(make_machine(two, driver=driver, mask="1")) == [(12, 0)]


def test_ids_need_no_order(make_machine: Make, two: list[dict[str, Any]]) -> None:
    """A mask of ids says the order itself; the driver is not asked."""
    machine = make_machine(two, mask=f"{two[1]['uuid']},{two[0]['uuid']}")
    assert versions(machine) == [(10, 3), (12, 0)]
    assert machine.questions["probe cuda.driver"] == 0


def test_identical_devices(make_machine: Make, card: Card, caplog: pytest.LogCaptureFixture) -> None:
    """B05: between equal cards there is no question and no warning."""
    machine = make_machine([card(0), card(1)])
    with caplog.at_level(logging.WARNING):
        assert len(plugin.hardpoint_detect(machine).devices) == 2
    assert machine.questions["probe cuda.driver"] == 0
    assert caplog.records == []


def test_one_warning_where_the_driver_cannot_be_asked(
    make_machine: Make, two: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    """B05: where the order stays unknown, one warning names both models and the variable, and the report has it too."""
    two[0]["name"] = "NVIDIA RTX PRO 2001"  # a warning of another text than the other tests'
    machine = make_machine(two, driver=EnvironmentFailure("no answer", code="timeout"))
    with caplog.at_level(logging.WARNING):
        first, second = plugin.hardpoint_detect(machine), plugin.hardpoint_detect(machine)
    (record,) = caplog.records
    text = record.getMessage()
    assert "NVIDIA RTX PRO 2001 and NVIDIA B300" in text
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in text
    assert "no answer" in text
    assert [note.message for note in first.notes] == [text]
    assert first == second


def test_equal_names_of_different_capability(make_machine: Make, card: Card, caplog: pytest.LogCaptureFixture) -> None:
    """The warning tells models apart by capability where their names are one."""
    cards = [card(0, name="NVIDIA X", capability=[8, 6]), card(1, name="NVIDIA X", capability=[8, 9])]
    with caplog.at_level(logging.WARNING):
        plugin.hardpoint_detect(make_machine(cards))
    assert "(NVIDIA X (8, 6) and NVIDIA X (8, 9))" in caplog.text


@pytest.mark.parametrize("uuid", [None, "GPU-of-nobody"])
def test_devices_that_cannot_be_told_apart(
    make_machine: Make, probed: Probed, two: list[dict[str, Any]], uuid: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A driver's answer without ids or of other devices is a guess, and is called one."""
    two[1]["name"] = f"NVIDIA Other {uuid}"
    driver = probed([{**item, "uuid": uuid, "pci_bus_id": None} for item in two])
    with caplog.at_level(logging.WARNING):
        assert versions(make_machine(two, driver=driver)) == [(12, 0), (10, 3)]
    assert "cannot be told from NVML's" in caplog.text


def test_device_that_cuda_does_not_offer(make_machine: Make, probed: Probed, two: list[dict[str, Any]]) -> None:
    """What NVML lists and the driver does not, is not counted, and the report says so."""
    detection = plugin.hardpoint_detect(make_machine(two, driver=probed([two[1]])))
    assert [device.name for device in detection.devices] == ["NVIDIA B300"]
    assert detection.notes[0].message.startswith("CUDA does not offer NVIDIA RTX PRO 2000 (GPU-00000000-")


def test_divided_device_among_others(make_machine: Make, probed: Probed, two: list[dict[str, Any]]) -> None:
    """Where MIG is on the driver shows one device; the others stay known, for a mask to name."""
    two[1] |= {"mig_enabled": True, "instances": [{"uuid": "MIG-1"}]}
    machine = make_machine(two, driver=probed([two[1]]), mask="1")
    assert versions(machine) == [(12, 0)]
