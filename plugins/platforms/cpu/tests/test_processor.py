from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hardpoint
from hardpoint import InMemoryMachine, ReasonCode
from hardpoint_cpu._architecture import BASELINE
from hardpoint_cpu._cpuinfo import common_words, parse_cpuinfo
from hardpoint_cpu._processor import read_processor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Make = Callable[..., InMemoryMachine]

AVX512 = {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512cd"}


@pytest.fixture(autouse=True)
def nothing_logged_before() -> Iterator[None]:
    """Each test has its own "once"."""
    hardpoint.reset()
    yield
    hardpoint.reset()


def test_what_the_system_shows(make_machine: Make) -> None:
    """Flags, vendor and model's name are read."""
    found = read_processor(make_machine("skylake", model="Some(R) Processor @ 2.00GHz"), None)
    assert found.family == "x86_64"
    assert found.arch == "x86-64-v4"
    assert found.features >= AVX512
    assert (found.vendor, found.name) == ("Intel", "Some(R) Processor @ 2.00GHz")
    assert found.notes == ()


def test_name_of_a_model_promises_nothing(make_machine: Make) -> None:
    """A part that is known for AVX-512, in a machine that hides it, has none."""
    found = read_processor(make_machine("haswell", model="Intel(R) Xeon(R) Platinum 8480+"), None)
    assert not [name for name in found.features if name.startswith(("avx512", "amx"))]
    assert found.arch == "x86-64-v3"


def test_flags_differ_between_cpus(make_machine: Make, flags: Mapping[str, str]) -> None:
    """A feature counts if every usable CPU has it; what only some have is noted."""
    machine = make_machine([flags["skylake"], flags["haswell"]])
    found = read_processor(machine, frozenset((0, 1)))
    assert not found.features & AVX512
    assert "avx2" in found.features
    assert [note.message for note in found.notes] == [
        "not on every usable CPU, so left out: avx512bw, avx512cd, avx512dq, avx512f, avx512vl, clwb"
    ]


def test_cpu_outside_the_mask_does_not_count(make_machine: Make, flags: Mapping[str, str]) -> None:
    """No thread of this process runs on a CPU outside its mask, so what that one lacks is no loss."""
    machine = make_machine([flags["skylake"], flags["haswell"]])
    assert read_processor(machine, frozenset((0,))).features >= AVX512
    assert not read_processor(machine, frozenset((1,))).features & AVX512


def test_mask_that_names_no_listed_cpu_means_all(make_machine: Make, flags: Mapping[str, str]) -> None:
    """Where the mask and cpuinfo do not fit together, every CPU counts."""
    machine = make_machine([flags["skylake"], flags["haswell"]])
    assert not read_processor(machine, frozenset((77,))).features & AVX512


def test_cpu_without_flags_is_assumed_to_have_none(make_machine: Make, flags: Mapping[str, str]) -> None:
    """A record that was cut off gives nothing away, so only the baseline is common."""
    found = read_processor(make_machine([flags["skylake"], None]), None)
    assert found.features == BASELINE["x86_64"]


@pytest.mark.parametrize(
    ("file", "why"),
    [
        (PermissionError(13, "Permission denied"), "PermissionError: [Errno 13] Permission denied"),
        (FileNotFoundError(2, "No such file or directory"), "FileNotFoundError: [Errno 2] No such file or directory"),
        ("", "/proc/cpuinfo has no line 'flags'"),
        ("rubbish", "/proc/cpuinfo has no line 'flags'"),
        (b"\xff\xfe\x00", "/proc/cpuinfo has no line 'flags'"),
    ],
)
def test_unreadable_cpuinfo(
    make_machine: Make, caplog: pytest.LogCaptureFixture, file: str | bytes | OSError, why: str
) -> None:
    """Only the baseline is assumed; one WARNING says so however often it is asked, and the report notes it."""
    machine = make_machine(files={"/proc/cpuinfo": file})
    with caplog.at_level(logging.WARNING, logger="hardpoint"):
        found = [read_processor(machine, None) for _ in range(3)]
    text = f"the CPU's instruction sets cannot be read ({why}): only what every x86_64 has is assumed"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [("WARNING", text)]
    assert {item.features for item in found} == {BASELINE["x86_64"]}
    assert {item.arch for item in found} == {"x86-64"}
    assert [note.message for note in found[0].notes] == [text]


def test_permitted_tiles(make_machine: Make) -> None:
    """Where the kernel offers tile state, AMX is there; nothing has been requested yet."""
    found = read_processor(make_machine("sapphire rapids", probes={"cpu.amx": True}), None)
    assert found.features >= {"amx_tile", "amx_bf16", "amx_int8", "bf16"}
    assert found.amx_refusal is None


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (False, "AMX not permitted: the kernel offers no tile state to processes"),
        (None, "AMX not permitted: the kernel offers no tile state to processes"),
        (1, "AMX not permitted: the kernel offers no tile state to processes"),
        (
            hardpoint.EnvironmentFailure(
                "AMX not permitted: arch_prctl(…): [Errno 22] Invalid argument", code="permission"
            ),
            "AMX not permitted: arch_prctl(…): [Errno 22] Invalid argument",
        ),
        (PermissionError(1, "no"), "AMX not permitted: PermissionError: [Errno 1] no"),
        (ImportError("no ctypes"), "AMX not permitted: ImportError: no ctypes"),
    ],
)
def test_refused_tiles(make_machine: Make, answer: object, why: str) -> None:
    """Where the kernel refuses, no feature of AMX is there, the reason is kept, and AVX-512 stays."""
    found = read_processor(make_machine("sapphire rapids", probes={"cpu.amx": answer}), None)
    assert not [name for name in found.features if name.startswith("amx")]
    assert found.features >= {"avx512_bf16", "bf16"}
    assert found.amx_refusal == why
    assert [(note.code, note.message) for note in found.notes] == [(ReasonCode.PERMISSION, why)]


def test_unrecorded_question_refuses_tiles(make_machine: Make) -> None:
    """A machine that was never asked about AMX has none, and the reason says that nobody recorded it."""
    found = read_processor(make_machine("sapphire rapids"), None)
    assert found.amx_refusal is not None
    assert found.amx_refusal.startswith("AMX not permitted: NotRecorded: ")


def test_bug_in_the_question_propagates(make_machine: Make) -> None:
    """What is no environment failure is a bug, and is not taken for an answer."""
    with pytest.raises(ZeroDivisionError):
        read_processor(make_machine("sapphire rapids", probes={"cpu.amx": ZeroDivisionError()}), None)


def test_cpu_without_tiles_is_not_asked_about_them(make_machine: Make) -> None:
    """Where there is no amx_tile flag, nobody asks the kernel."""
    machine = make_machine("skylake")
    assert read_processor(machine, None).amx_refusal is None
    assert machine.questions["probe cpu.amx"] == 0


def test_arm(make_arm_machine: Make) -> None:
    """Arm's cpuinfo has Features and no flags, numbers for a name, and is read all the same."""
    found = read_processor(make_arm_machine("grace"), None)
    assert found.features >= {"asimd", "bf16", "sve", "i8mm", "fp16"}
    assert (found.family, found.arch) == ("aarch64", "armv9-a")
    assert (found.vendor, found.name) == ("Arm", "Arm CPU part 0xd4f")


def test_arm_of_a_vendor_that_nobody_listed(make_arm_machine: Make) -> None:
    """The implementer's number stands where its name is not known."""
    found = read_processor(make_arm_machine(implementer="0x99", part="0x001"), None)
    assert (found.vendor, found.name) == ("0x99", "0x99 CPU part 0x001")


def test_features_outside_the_records() -> None:
    """Old Arm kernels and s390x write the features once, in no CPU's record."""
    text = (
        "vendor_id       : IBM/S390\n# processors    : 2\nbogomips per cpu: 3241.00\n"
        "features\t: esan3 zarch stfle msa ldisp eimm dfp edat etf3eh highgprs te vx vxd vxe gs vxe2\n"
        "processor 0: version = FF,  identification = 0133E8,  machine = 8561\n"
        "processor 1: version = FF,  identification = 0133E8,  machine = 8561\n\n"
        "cpu number      : 0\ncpu MHz dynamic : 5200\n\ncpu number      : 1\ncpu MHz dynamic : 5200\n\n"
    )
    machine = InMemoryMachine(system="Linux", architecture="s390x", files={"/proc/cpuinfo": text})
    found = read_processor(machine, frozenset((0, 1)))
    assert found.features >= {"vx", "vxe", "vxe2"}
    assert (found.arch, found.vendor, found.name) == ("s390x", "IBM", "s390x CPU")


def test_riscv() -> None:
    """The extensions are taken out of the isa line; the vector one goes by the name rvv."""
    text = (
        "processor\t: 0\nhart\t\t: 0\nisa\t\t: rv64imafdcv_zicsr_zifencei_zvfh\nmmu\t\t: sv39\nuarch\t\t: some,core\n\n"
    )
    machine = InMemoryMachine(system="Linux", architecture="riscv64", files={"/proc/cpuinfo": text})
    found = read_processor(machine, None)
    assert found.features == set("imafdc") | {"rvv", "zicsr", "zifencei", "zvfh"}
    assert (found.arch, found.name) == ("riscv64", "some,core")


def test_power() -> None:
    """POWER's cpuinfo shows no features: what its little-endian ABI guarantees is there."""
    text = "processor\t: 0\ncpu\t\t: POWER9 (raw), altivec supported\nclock\t\t: 2200MHz\n\ntimebase\t: 512000000\n"
    machine = InMemoryMachine(system="Linux", architecture="ppc64le", files={"/proc/cpuinfo": text})
    found = read_processor(machine, None)
    assert found.features == {"altivec", "vsx"}
    assert (found.arch, found.name, found.vendor) == ("ppc64le", "POWER9 (raw), altivec supported", "unknown")


def darwin(architecture: str, stdout: str | None) -> InMemoryMachine:
    """A macOS whose sysctl prints that (None: it has none)."""
    tools = {} if stdout is None else {"sysctl hw.optional machdep.cpu": stdout}
    return InMemoryMachine(system="Darwin", architecture=architecture, affinity=None, cpu_count=8, tools=tools)


def test_apple_arm() -> None:
    """MacOS has no /proc: sysctl is asked, and its names become Linux's."""
    stdout = (
        "hw.optional.arm.FEAT_BF16: 1\nhw.optional.arm.FEAT_I8MM: 1\nhw.optional.arm.FEAT_DotProd: 1\n"
        "hw.optional.arm.FEAT_FP16: 1\nhw.optional.arm.FEAT_SME: 0\nhw.optional.AdvSIMD: 1\n"
        "machdep.cpu.brand_string: Apple M2\n"
    )
    found = read_processor(darwin("arm64", stdout), None)
    assert found.features == {"asimd", "fp", "bf16", "i8mm", "asimddp", "fphp", "asimdhp", "fp16"}
    assert (found.vendor, found.name, found.arch) == ("Apple", "Apple M2", "armv8-a")


def test_apple_x86() -> None:
    """On an Intel Mac what is switched on counts, not what the CPUID words of the silicon say."""
    stdout = (
        "hw.optional.sse3: 1\nhw.optional.supplementalsse3: 1\nhw.optional.sse4_1: 1\nhw.optional.sse4_2: 1\n"
        "hw.optional.avx1_0: 1\nhw.optional.f16c: 1\nhw.optional.fma: 1\nhw.optional.avx2_0: 1\nhw.optional.bmi1: 1\n"
        "hw.optional.bmi2: 1\nhw.optional.avx512f: 0\nmachdep.cpu.vendor: GenuineIntel\n"
        "machdep.cpu.brand_string: Intel(R) Core(TM) i7\n"
        "machdep.cpu.features: FPU SSE SSE2 SSE3 CX16 MOVBE POPCNT XSAVE OSXSAVE AVX1.0\n"
        "machdep.cpu.leaf7_features: AVX2 AVX512F\nmachdep.cpu.extfeatures: SYSCALL XD EM64T LAHF LZCNT RDTSCP\n"
    )
    found = read_processor(darwin("x86_64", stdout), None)
    assert found.arch == "x86-64-v3"
    assert "avx512f" not in found.features
    assert (found.vendor, found.name) == ("Intel", "Intel(R) Core(TM) i7")


@pytest.mark.parametrize("stdout", [None, "", "rubbish"])
def test_apple_without_sysctl(caplog: pytest.LogCaptureFixture, stdout: str | None) -> None:
    """Where sysctl is missing or says nothing, the baseline is assumed, with one WARNING."""
    with caplog.at_level(logging.WARNING, logger="hardpoint"):
        found = [read_processor(darwin("arm64", stdout), None) for _ in range(2)]
    assert {item.features for item in found} == {BASELINE["aarch64"]}
    assert len(caplog.records) == 1


def test_windows(caplog: pytest.LogCaptureFixture) -> None:
    """Windows lists nothing: the baseline is assumed, which is noted and no reason to warn at every start."""
    machine = InMemoryMachine(
        system="Windows", architecture="AMD64", variables={"PROCESSOR_IDENTIFIER": "Intel64 Family 6 Model 85"}
    )
    found = read_processor(machine, None)
    assert found.features == BASELINE["x86_64"]
    assert found.name == "Intel64 Family 6 Model 85"
    assert len(found.notes) == 1
    assert not caplog.records


def test_text_that_was_cut_in_the_middle_of_a_record(make_machine: Make, flags: Mapping[str, str]) -> None:
    """A recorded file may be cut at some length: the last record then says less than is true, and is left out."""
    whole = make_machine([flags["skylake"]] * 100).read_text("/proc/cpuinfo")
    for length in range(40_000, 41_500, 50):
        machine = make_machine(files={"/proc/cpuinfo": whole[:length]})
        found = read_processor(machine, None)
        assert found.features >= AVX512
        assert found.notes == ()


def test_first_record_of_a_cpu_counts() -> None:
    """A CPU that is listed twice is read once."""
    info = parse_cpuinfo("processor : 0\nflags : a b\n\nprocessor : 0\nflags : c\n\n")
    assert common_words(info, "flags", None) == (frozenset("ab"), frozenset())


CPUINFO = st.lists(
    st.sampled_from(
        [
            "processor : 0",
            "processor : 1",
            "processor: x",
            "flags : avx2 fma",
            "flags :",
            "Features : asimd",
            ":",
            "",
            "isa : rv",
        ]
    )
).map("\n".join)


@given(
    st.one_of(st.text(), CPUINFO), st.sampled_from(["x86_64", "aarch64", "armv7l", "riscv64", "s390x", "ppc64le", ""])
)
def test_any_text_has_an_answer(text: str, architecture: str) -> None:
    """Whatever cpuinfo holds, there is an answer with at least the baseline and nothing that is not written there."""
    machine = InMemoryMachine(
        system="Linux", architecture=architecture, files={"/proc/cpuinfo": text}, probes={"cpu.amx": True}
    )
    found = read_processor(machine, frozenset((0,)))
    baseline = BASELINE.get(found.family, frozenset())
    assert found.features >= baseline
    extra = found.features - baseline - {"rvv", "bf16", "fp16"}
    assert all(name in text.lower() or name in text for name in extra)
    assert found.name
    assert found.vendor
