"""What the CUDA platform says of this machine against what torch says: `python benchmarks/gpu_smoke.py`.

The platform's tests run with fake drivers; this is for a machine with real ones. It checks that resolution creates no
context and leaves a fork usable, and that order, ids, capabilities, memory and multiprocessors are torch's.
"""

from __future__ import annotations

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
    checks = [
        ("resolution loads no torch", "torch" not in sys.modules),
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
    checks.append(("spawn is recommended afterwards", platform.recommended_start_method().name == "spawn"))
    for what, holds in checks:
        print(f"{'ok    ' if holds else 'FAILED'} {what}")
    return int(not all(holds for _, holds in checks))


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
