from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardpoint import EnvironmentFailure, InMemoryMachine
from hardpoint.hookspecs import DetectionStatus
from hardpoint_cuda._features import capability_of, sm_count_of
from hardpoint_cuda._inventory import NVML, read_inventory
from hardpoint_cuda.plugin import plugin

if TYPE_CHECKING:
    from collections.abc import Callable

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ("index", "name", "uuid", "pci_bus_id", "capability", "memory_bytes", "unified_memory", "cores", "sm_count")
ODD = st.fixed_dictionaries({}, optional=dict.fromkeys((*FIELDS, "mig_enabled", "instances"), JSON))


@given(
    st.one_of(
        JSON,
        st.fixed_dictionaries(
            {"devices": st.lists(ODD, max_size=3)},
            optional={"problems": JSON, "cuda_version": JSON, "library": JSON, "driver_version": JSON},
        ),
    ),
    st.sampled_from([None, "", "0", "1,0", "GPU-a", "MIG-a"]),
)
def test_garbage_of_a_probe(answer: Any, mask: str | None) -> None:
    """Whatever a probe answers, detection ends with devices or with a reason."""
    machine = InMemoryMachine(
        files={"/dev/nvidiactl": ""},
        probes={"cuda.nvml": answer, "cuda.driver": answer, "cuda.driver.masked": answer},
        variables={} if mask is None else {"CUDA_VISIBLE_DEVICES": mask},
    )
    detection = plugin.hardpoint_detect(machine)
    assert detection.devices if detection.status is DetectionStatus.USABLE else detection.reasons


@pytest.mark.parametrize("answer", [None, [], {}, {"devices": None}, "text", 3])
def test_answer_without_devices(answer: Any) -> None:
    """An answer that has no list of devices is an environment failure."""
    with pytest.raises(EnvironmentFailure, match="NVML answers without a list of devices"):
        read_inventory(answer, NVML)


def test_odd_numbers_are_unknown(probed: Callable[..., Any], card: Callable[..., Any]) -> None:
    """Negative numbers, text and truth values where a number belongs are None, and so is a memory of 0."""
    odd = card(memory_bytes=0, capability=["9", 0], cores=True, index=-1, name="  ", uuid="", pci_bus_id="[N/A]")
    (gpu,) = read_inventory(probed([odd]), NVML).gpus
    assert (gpu.memory_bytes, gpu.version, gpu.sm_count, gpu.uuid, gpu.pci_bus_id) == (None,) * 5
    assert (gpu.number, gpu.name) == (0, "NVIDIA device of unknown name")


@pytest.mark.parametrize(
    ("cores", "version", "expected"),
    [
        (16896, (9, 0), 132), (6912, (8, 0), 108), (2560, (7, 5), 40), (18944, (10, 0), 148), (21760, (12, 0), 170),
        (16384, (8, 9), 128), (1, (9, 0), None), (16896, (13, 0), None), (16896, None, None), (None, (9, 0), None),
    ],
)  # fmt: skip
def test_multiprocessors(cores: int | None, version: tuple[int, int] | None, expected: int | None) -> None:
    """H100, A100, T4, B200, RTX 5090 and RTX 4090 by their CUDA cores; what does not fit is unknown."""
    assert sm_count_of(cores, version) == expected


@pytest.mark.parametrize(
    ("version", "has", "lacks"),
    [
        ((7, 5), {"fp16", "tensor_cores"}, {"bf16", "fp8", "tma"}),
        ((8, 0), {"bf16", "tf32"}, {"fp8", "pdl"}),
        ((8, 9), {"bf16", "fp8"}, {"tma", "pdl", "wgmma"}),
        ((9, 0), {"fp8", "tma", "pdl", "wgmma"}, {"tcgen05", "fp4"}),
        ((10, 3), {"tma", "pdl", "fp4", "tcgen05"}, {"wgmma"}),
        ((12, 1), {"fp8", "pdl", "fp4"}, {"wgmma", "tcgen05"}),
        ((5, 2), set(), {"fp16", "bf16"}),
    ],
)
def test_features(version: tuple[int, int], has: set[str], lacks: set[str]) -> None:
    """Features come with a generation; matrix instructions of one generation are not the next one's."""
    capability = capability_of(version)
    assert capability is not None
    assert has <= capability.features
    assert not lacks & capability.features
    assert capability.version == version


def test_capability_without_a_name() -> None:
    """A version that has no architecture's name is unknown, not a crash."""
    assert capability_of((9, 10)) is None
    assert capability_of(None) is None
