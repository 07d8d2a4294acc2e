"""Threads: how many, what they have no influence on, and what a fork leaves."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

from hardpoint.attention import AttentionConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hardpoint_cpu_native._kernels import Kernels
    from tests.attention.conformance import Step

pytestmark = pytest.mark.torch

CONFIG = AttentionConfig(head_size=64, num_heads=8, num_kv_heads=2, dtype="bfloat16", block_size=16)


@pytest.fixture(autouse=True)
def _same_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# Large enough for several threads. `bytes_of` asks nothing of torch, whose own threads do not survive a fork.
PREPARE = """
import ctypes, importlib, os, sys, threading
import torch
from hardpoint.attention import AttentionBatch, AttentionConfig
from hardpoint_cpu_native.backend import CpuNativeBackend
kernels = importlib.import_module("hardpoint_cpu_native." + sys.argv[1])
CpuNativeBackend.kernels = classmethod(lambda _: kernels)
torch.manual_seed(0)
config = AttentionConfig(head_size=64, num_heads=8, num_kv_heads=2, dtype="bfloat16", block_size=16)
spec = CpuNativeBackend.kv_cache_spec(config)
cache = spec.allocate(80, device="cpu")
for tensor in cache:
    tensor.normal_()
batch = AttentionBatch.build(
    query_lens=[1, 1, 64], seq_lens=[500, 400, 300], block_table=[list(range(n, n + 33)) for n in (0, 20, 40)],
    slot_mapping=[-1] * 66,
)
torch.set_num_threads(4)
layer = CpuNativeBackend.create_layer(config, scale=0.1, device="cpu")
layer.most_threads = 4
plan = CpuNativeBackend.plan(config, batch)
query, key = torch.randn(66, 8, 64).bfloat16(), torch.randn(66, 2, 64).bfloat16()
out = torch.empty_like(query)
def bytes_of(tensor):
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * 2)
def attend():
    layer.forward(query, key, key, cache, plan, out=out)
    return bytes_of(out)
def child(work):
    number = os.fork()
    if number == 0:
        os._exit(0 if work() else 9)
    _, status = os.waitpid(number, 0)
    assert status == 0, status
"""


def run(script: str, kernels: Kernels) -> str:
    """What a process prints that has the step above."""
    command = [sys.executable, "-W", "ignore", "-c", PREPARE + script, f"_{kernels.instruction_set}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_child_of_a_fork_has_threads_of_its_own(kernels: Kernels) -> None:
    """After the parent's threads have worked, children and their children get the same result."""
    script = """
expected = attend()
def twice():
    if attend() != expected:
        return False
    child(lambda: attend() == expected)
    return len(os.listdir("/proc/self/task")) == 4
child(twice)
child(lambda: attend() == expected)
print(attend() == expected)
"""
    assert run(script, kernels) == "True"


def test_a_fork_in_the_middle_of_a_call_harms_nobody(kernels: Kernels) -> None:
    """Another thread is inside a kernel, holding the pool, while this one forks again and again."""
    script = """
expected = attend()
stop = threading.Event()
def work():
    mine = torch.empty_like(query)
    while not stop.is_set():
        layer.forward(query, key, key, cache, plan, out=mine)
thread = threading.Thread(target=work)
thread.start()
for _ in range(10):
    child(lambda: attend() == expected)
stop.set()
thread.join()
print(attend() == expected)
"""
    assert run(script, kernels) == "True"


def test_a_child_that_begins_with_the_kernels_does_not_wait_for_its_parents_threads(kernels: Kernels) -> None:
    """The parent has used torch's threads and knows nothing of the kernels."""
    script = """
torch.set_num_threads(4)
square = torch.ones(1500, 1500)
assert (square @ square)[0, 0] == 1500
def begin():
    torch.set_num_threads(1)
    exec(prepare, globals())
    torch.set_num_threads(4)
    once = attend()
    return attend() == once and len(os.listdir("/proc/self/task")) >= 4
child(begin)
print(True)
"""
    # torch itself would wait for ever.
    before, child = PREPARE.replace("torch.set_num_threads(4)\n", "").split("def child")
    begin = f"import os, sys, torch\nprepare = {before!r}\ndef child{child}"
    command = [sys.executable, "-W", "ignore", "-c", begin + script, f"_{kernels.instruction_set}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "True"


def test_no_threads_beside_torchs(kernels: Kernels) -> None:
    """They would share the CPUs with those that wait for torch's next call."""
    script = """
count = lambda: len(os.listdir("/proc/self/task"))
expected = attend()
square = torch.ones(1500, 1500)
assert (square @ square)[0, 0] == 1500
before = count()
for most in (64, 2, 4, 1):
    layer.most_threads = most
    assert attend() == expected
print(count() - before)
"""
    assert run(script, kernels) == "0"


def test_as_many_threads_of_our_own_as_torch_may_have_and_as_the_budget_allows(kernels: Kernels) -> None:
    """Where torch's cannot be used: one more per helper, counted by the kernel; a call with fewer starts none."""
    script = """
def work():
    count = lambda: len(os.listdir("/proc/self/task"))
    found = []
    torch.set_num_threads(1)
    before = count()
    attend()
    found.append(count() - before)
    torch.set_num_threads(4)
    layer.most_threads = 2
    attend()
    found.append(count() - before)
    layer.most_threads = 64
    attend()
    found.append(count() - before)
    return found == [0, 1, 3]
child(work)
"""
    run(script, kernels)


def test_a_limit_of_threads_ends_no_process(kernels: Kernels) -> None:
    """OpenMP ends the process that it cannot start a thread for; here fewer threads do."""
    script = """
import resource
torch.set_num_threads(1)
expected = attend()
def work():
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    if os.getuid() == 0:
        os.setresuid(65534, 65534, 65534)
    try:
        threading.Thread(target=print).start()
    except RuntimeError:
        pass
    else:
        print("unlimited")
        return
    torch.set_num_threads(4)
    print(attend() == expected)
work()
"""
    said = run(script, kernels)
    if said.endswith("unlimited"):
        pytest.skip("this system does not limit a user's threads")
    assert said == "True"


def test_a_limit_that_leaves_a_few_threads_ends_no_process(kernels: Kernels) -> None:
    """Fewer than OpenMP would start: they do not fit beside one another, if well one after the other."""
    script = """
import resource
torch.set_num_threads(1)
expected = attend()
if os.getuid():
    print("no root")
else:
    uid = 61000 + os.getpid() % 4000
    most = len(os.listdir("/proc/self/task")) + 2
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    os.setresuid(uid, uid, uid)
    torch.set_num_threads(24)
    layer.most_threads = 24
    print(attend() == expected, len(os.listdir("/proc/self/task")) <= most)
"""
    said = run(script, kernels)
    if said == "no root":
        pytest.skip("only root can become a user who has no other threads")
    assert said == "True True"


def test_a_daemon_thread_in_a_kernel_does_not_disturb_the_interpreters_end(kernels: Kernels) -> None:
    """It comes back while there is nothing left to come back to."""
    script = """
def work():
    mine = torch.empty_like(query)
    while True:
        layer.forward(query, key, key, cache, plan, out=mine)
attend()
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
print("end")
"""
    assert run(script, kernels) == "end"


@pytest.mark.parametrize("head", [0, 7])
def test_a_value_that_is_no_number_changes_no_bit_of_other_heads(random_step: Callable[..., Step], head: int) -> None:
    """However many threads there are, and so however many heads are read together."""
    config = AttentionConfig(head_size=64, num_heads=16, num_kv_heads=8, dtype="bfloat16", block_size=16)
    step = random_step(config, [1, 1, 1, 1], [500, 400, 300, 200])
    layer = step.layer()
    layer.most_threads = 8  # type: ignore[attr-defined]  # this plugin's own layer

    def forward(threads: int) -> torch.Tensor:
        torch.set_num_threads(threads)
        found = layer.forward(step.query, step.key, step.value, step.cache, step.plan())
        assert isinstance(found, torch.Tensor)
        return found

    before = forward(1)
    assert step.cache is not None
    step.cache[1][:, head, :, 5] = torch.inf
    others = [n for n in range(16) if n // 2 != head]
    for threads in (1, 8):
        assert torch.equal(forward(threads)[:, others], before[:, others])


def test_the_budget_is_the_platforms(backend: Any) -> None:
    """A layer takes no more threads than the process has CPUs."""
    import hardpoint

    layer = backend.create_layer(CONFIG, scale=1.0, device="cpu")
    assert layer.most_threads == getattr(hardpoint.platform("cpu"), "usable_cpus")  # noqa: B009  # not in the contract


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_neither_threads_nor_repetition_change_a_bit(random_step: Callable[..., Step], dtype: str) -> None:
    """Long sequences are cut alike however many work on them."""
    config = AttentionConfig(head_size=64, num_heads=4, num_kv_heads=1, dtype=dtype, block_size=16)
    step = random_step(config, [1, 200, 1], [1500, 700, 30])
    layer = step.layer()
    results = []
    for threads in (1, 2, 3, 7, 7):
        torch.set_num_threads(threads)
        layer.most_threads = threads  # type: ignore[attr-defined]  # this plugin's own layer
        results.append(layer.forward(step.query, step.key, step.value, step.cache, step.plan()))
    assert all(torch.equal(result, results[0]) for result in results)  # type: ignore[arg-type]  # tensors, without lse


def test_calls_from_several_threads_at_once(random_step: Callable[..., Step]) -> None:
    """Each has its result; whoever finds the pool taken works alone."""
    steps = [random_step(CONFIG, [1, 40, 1], [700, 300, 30], seed=seed) for seed in range(4)]
    layer = steps[0].layer()
    expected = [layer.forward(s.query, s.key, s.value, s.cache, s.plan()) for s in steps]
    wrong = []

    def work(number: int) -> None:
        step = steps[number]
        for _ in range(20):
            out = layer.forward(step.query, step.key, step.value, step.cache, step.plan())
            if not torch.equal(out, expected[number]):  # type: ignore[arg-type]  # tensors, without lse
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
