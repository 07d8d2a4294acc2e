"""Machines for the tests, written as the kernel's documentation describes the files."""

from __future__ import annotations

import platform
import sys
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest

from hardpoint import InMemoryMachine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_HASWELL = (
    "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2 ss ht syscall "
    "nx pdpe1gb rdtscp lm constant_tsc rep_good nopl cpuid pni pclmulqdq ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt aes "
    "xsave avx f16c rdrand hypervisor lahf_lm abm fsgsbase bmi1 avx2 smep bmi2 erms"
)
_SKYLAKE = f"{_HASWELL} avx512f avx512dq clwb avx512cd avx512bw avx512vl"
_COOPER_LAKE = f"{_SKYLAKE} avx512_vnni avx512_bf16"
_GRAVITON_2 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs"
_GRAVITON_3 = (
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc dcpop sha3 sm3 "
    "sm4 asimddp sha512 sve asimdfhm dit uscat ilrcpc flagm ssbs paca pacg dcpodp svei8mm svebf16 i8mm bf16 dgh rng"
)
FLAGS = {
    "k8": "fpu cx8 cmov mmx fxsr sse sse2 syscall nx lm",
    "nehalem": "fpu cx8 cmov mmx fxsr sse sse2 syscall nx lm pni ssse3 cx16 sse4_1 sse4_2 popcnt lahf_lm",
    "haswell": _HASWELL,
    "skylake": _SKYLAKE,
    "cooper lake": _COOPER_LAKE,
    "sapphire rapids": f"{_COOPER_LAKE} avx512vbmi avx512_fp16 amx_bf16 amx_tile amx_int8",
    "graviton 2": _GRAVITON_2,
    "graviton 3": _GRAVITON_3,
    "grace": f"{_GRAVITON_3} sb sve2 sveaes svepmull svebitperm svesha3 svesm4 flagm2 frint",
}


def x86_cpuinfo(flags: Sequence[str | None], model: str, vendor: str) -> str:
    """One record per CPU; a CPU whose flags are None has no such line."""
    records = []
    for number, line in enumerate(flags):
        record = [
            f"processor\t: {number}",
            f"vendor_id\t: {vendor}",
            "cpu family\t: 6",
            f"model name\t: {model}",
            f"core id\t\t: {number}",
            "fpu\t\t: yes",
        ]
        if line is not None:
            record.append(f"flags\t\t: {line}")
        record.append("power management:")
        records.append("\n".join(record))
    return "\n\n".join(records) + "\n\n"


def arm_cpuinfo(features: str, implementer: str, part: str) -> str:
    """As an arm64 kernel writes it: no flags, no name."""
    return "".join(
        f"processor\t: {number}\nBogoMIPS\t: 2000.00\nFeatures\t: {features}\nCPU implementer\t: {implementer}\n"
        f"CPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: {part}\nCPU revision\t: 0\n\n"
        for number in range(4)
    )


# Lets arch_prctl fail with EPERM for the two questions about processor state, as a sandbox does. The other uses of the
# call (every new thread needs one) go through.
_SECCOMP = """
import ctypes, struct
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, FAIL_EPERM = 0x7FFF0000, 0x00050001
program = b"".join(struct.pack("HBBI", *line) for line in [
    (LOAD, 0, 0, 0), (EQUAL, 0, 3, 158),
    (LOAD, 0, 0, 16), (EQUAL, 2, 0, 0x1021), (EQUAL, 1, 0, 0x1023),
    (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, FAIL_EPERM),
])
buffer = ctypes.create_string_buffer(program)
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
prog = Program(7, ctypes.addressof(buffer))
prctl = ctypes.CDLL(None, use_errno=True).prctl
assert prctl(38, 1, 0, 0, 0) == 0, "no_new_privs"
assert prctl(22, 2, ctypes.byref(prog), 0, 0) == 0, "seccomp"
"""


@pytest.fixture
def forbid_tiles() -> str:
    """Code that makes the kernel refuse tiles to the process that runs it. Only x86-64 Linux has any to refuse."""
    return _SECCOMP if sys.platform == "linux" and platform.machine() == "x86_64" else ""


@pytest.fixture
def flags() -> Mapping[str, str]:
    """The flags (x86) or features (Arm) that Linux shows of well-known CPUs, by name in lower case."""
    return FLAGS


@pytest.fixture
def make_machine() -> Callable[..., InMemoryMachine]:
    """A factory of x86-64 Linux machines with 64 GiB. `cpu`: one of `flags`, or a line for each CPU (None: no line)."""

    def make(
        cpu: str | Sequence[str | None] = "haswell",
        *,
        model: str = "Test Processor",
        vendor: str = "GenuineIntel",
        files: Mapping[str, str | bytes | OSError] = MappingProxyType({}),
        **overrides: Any,
    ) -> InMemoryMachine:
        lines = [FLAGS[cpu]] * 4 if isinstance(cpu, str) else cpu
        facts: dict[str, Any] = {
            "system": "Linux",
            "architecture": "x86_64",
            "affinity": frozenset(range(len(lines))),
            "cpu_count": len(lines),
            "total_memory_bytes": 64 << 30,
            **overrides,
        }
        return InMemoryMachine(files={"/proc/cpuinfo": x86_cpuinfo(lines, model, vendor), **files}, **facts)

    return make


@pytest.fixture
def make_arm_machine() -> Callable[..., InMemoryMachine]:
    """A factory of aarch64 Linux machines with four CPUs: `cpu` is one of `flags`."""

    def make(
        cpu: str = "grace", *, implementer: str = "0x41", part: str = "0xd4f", **overrides: Any
    ) -> InMemoryMachine:
        facts: dict[str, Any] = {
            "system": "Linux",
            "architecture": "aarch64",
            "affinity": frozenset(range(4)),
            "cpu_count": 4,
            "files": {"/proc/cpuinfo": arm_cpuinfo(FLAGS[cpu], implementer, part)},
            **overrides,
        }
        return InMemoryMachine(**facts)

    return make
