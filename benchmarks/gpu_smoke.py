"""What the CUDA platform says of this machine against what torch says: `python benchmarks/gpu_smoke.py`.

The platform's tests run with fake drivers; this is for a machine with real ones. It checks that resolution creates no
context and leaves a fork usable, and that order, ids, capabilities, memory and multiprocessors are torch's.

Contexts are counted, not inferred: `active_contexts` asks the driver that this process has loaded for the state of each
device's primary context (``cuDevicePrimaryCtxGetState``), and `processes_with_contexts` asks NVML which processes
compute on each device. That both count one more once torch has made a tensor shows that they count at all.
"""

from __future__ import annotations

import ctypes
import os
import sys

import hardpoint
from hardpoint.errors import ResolutionError
from hardpoint_cuda.platform import CudaPlatform


def main() -> int:
    try:
        resolution = hardpoint.resolve("cuda")
    except ResolutionError as error:
        print(f"no CUDA platform here: {error}")
        return 2
    platform = resolution.platform
    if not isinstance(platform, CudaPlatform):
        print(f"cuda is spoken for by {type(platform).__module__} here")
        return 2
    print(resolution.explain())
    platform.get_current_memory_usage()
    before, told_before = active_contexts(), processes_with_contexts()
    checks = [
        ("resolution loads no torch", "torch" not in sys.modules),
        ("resolution creates no context: the driver counts none", before == 0),
        ("resolution creates no context: NVML lists this process nowhere", os.getpid() not in told_before),
        ("resolution opens none of CUDA's nodes", "/dev/nvidia-uvm" not in open_files()),
        ("fork is recommended before torch", platform.recommended_start_method().name == "fork"),
        ("a child of a fork can use CUDA", works_in_a_child()),
    ]
    import torch

    checks.append(("the number of devices", platform.device_count() == torch.cuda.device_count()))
    for index in range(min(platform.device_count(), torch.cuda.device_count())):
        device, theirs = platform.device(index), torch.cuda.get_device_properties(index)
        capability, memory = device.capability, platform.get_device_total_memory(index)
        checks += [
            (f"device {index}: name", device.name == theirs.name),
            (f"device {index}: id", device.uuid is not None and str(theirs.uuid) in device.uuid),
            (
                f"device {index}: capability",
                capability is not None and capability.version == (theirs.major, theirs.minor),
            ),
            (
                f"device {index}: multiprocessors",
                device.properties["sm_count"] in (None, theirs.multi_processor_count),
            ),
            # NVML counts what the driver keeps for itself too.
            (f"device {index}: memory", memory is not None and 0 <= memory - theirs.total_memory < memory // 16),
        ]
    torch.zeros(1, device="cuda")
    told = processes_with_contexts()
    # In a container NVML may tell the numbers that the host has for its processes.
    is_told = os.getpid() in told or len(told) > len(told_before)
    checks += [
        ("a tensor of torch is one context: the driver counts it", active_contexts() == 1),
        ("a tensor of torch is one context: NVML lists one process more", is_told),
    ]
    checks.append(("spawn is recommended afterwards", platform.recommended_start_method().name == "spawn"))
    for what, holds in checks:
        print(f"{'ok    ' if holds else 'FAILED'} {what}")
    return int(not all(holds for _, holds in checks))


def active_contexts() -> int:
    """How many devices have an active primary context in this process. Loads and initialises nothing.

    Where the driver's library is not loaded here, or is and was not initialised, there can be none.
    """
    try:
        library = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return 0
    not_initialised = 3
    count = ctypes.c_int()
    code = library.cuDeviceGetCount(ctypes.byref(count))
    if code == not_initialised:
        return 0
    check(code)
    contexts = 0
    for index in range(count.value):
        device, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
        check(library.cuDeviceGet(ctypes.byref(device), index))
        check(library.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active)))
        contexts += active.value
    return contexts


def check(code: int) -> None:
    if code:
        raise OSError(f"the CUDA driver answers with error {code}")


def processes_with_contexts() -> list[int]:
    """The processes that NVML lists as computing, once for each device that they compute on."""
    import pynvml

    pynvml.nvmlInit()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return [item.pid for handle in handles for item in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    finally:
        pynvml.nvmlShutdown()


def open_files() -> set[str]:
    return {os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")}


def works_in_a_child() -> bool:
    child = os.fork()
    if child == 0:
        import torch

        os._exit(int(torch.ones(2, device="cuda").sum().item() != 2))
    return os.waitpid(child, 0)[1] == 0


if __name__ == "__main__":
    sys.exit(main())
