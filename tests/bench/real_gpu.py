"""On a machine with an NVIDIA GPU: pools over its memory, a training step on one, a task through the cluster."""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import actorgrid

from .figures import Figure, Skipped, percentile, registry

POOL_BYTES = 4 << 30
SIZES = (1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
PAIRS = {"cuMemAlloc": 60}
"""How often an allocation and a freeing are timed for each size; 2,000 times where nothing is said here."""
ROUNDS = 1200
STEPS = 100
Pair = tuple[Callable[[int], Any], Callable[[Any], Any]]
TRAIN = """
import json, sys, time
import torch
for kind in ("mem_efficient", "flash", "cudnn"):  # their backward passes add up in any order
    getattr(torch.backends.cuda, f"enable_{kind}_sdp")(False)
if sys.argv[1] == "pool":
    from actorgrid.device_memory.torch_allocator import use_in_torch
    use_in_torch(12 << 30)
torch.manual_seed(7)
torch.use_deterministic_algorithms(True)
layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0)
model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
inputs = [torch.randn(64, 256, 512, device="cuda") for _ in range(4)]
def step(number):
    loss = model(inputs[number % 4]).sub(inputs[(number + 1) % 4]).square().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss
for number in range(10):
    step(number)
torch.cuda.synchronize()
started = time.perf_counter()
losses = [step(number) for number in range(int(sys.argv[2]))]
torch.cuda.synchronize()
taken = time.perf_counter() - started
print(json.dumps([taken / len(losses) * 1000, [loss.item() for loss in losses]]))
"""


def _needs_gpu() -> Any:
    if not Path("/dev/nvidiactl").exists():
        raise Skipped("no NVIDIA GPU is here")
    try:
        import torch
        from cuda.bindings import driver
    except ImportError as error:
        raise Skipped(str(error)) from None
    torch.zeros(1, device="cuda")
    return torch, driver


def _allocators(pool: Any, torch: Any, driver: Any) -> dict[str, Pair]:
    stream = driver.CUstream(0)
    told, kept = driver.cuDeviceGetDefaultMemPool(0)
    assert not told
    # As programs do that care: what is freed stays with the process.
    release = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    driver.cuMemPoolSetAttribute(kept, release, driver.cuuint64_t(POOL_BYTES))
    allocate, free = torch._C._cuda_cudaCachingAllocator_raw_alloc, torch._C._cuda_cudaCachingAllocator_raw_delete
    return {
        "DevicePool": (pool.allocate, pool.free),
        "cuMemAlloc": (lambda n: driver.cuMemAlloc(n)[1], driver.cuMemFree),
        "cuMemAllocAsync": (lambda n: driver.cuMemAllocAsync(n, stream)[1], lambda p: driver.cuMemFreeAsync(p, stream)),
        "PyTorch's": (lambda n: allocate(n, 0), free),
    }


def _pair_ns(pair: Pair, size: int, count: int) -> list[int]:
    allocate, free = pair
    found = []
    for _ in range(count):
        started = time.perf_counter_ns()
        free(allocate(size))
        found.append(time.perf_counter_ns() - started)
    return found


@registry.add("device_memory")
def device_memory(runs: int) -> Iterator[Figure]:
    """One block allocated and freed, from Python, on the default stream: ours, the driver's two ways, PyTorch's."""
    torch, driver = _needs_gpu()
    from actorgrid.device_memory import CudaMemory, DevicePool

    with DevicePool(CudaMemory(), POOL_BYTES) as pool:
        for name, pair in _allocators(pool, torch, driver).items():
            for size in SIZES:
                _pair_ns(pair, size, 20)
                samples = [_pair_ns(pair, size, PAIRS.get(name, 2000)) for _ in range(runs)]
                torch.cuda.synchronize()
                yield Figure(
                    f"{name}, {size >> 10} KiB: allocate and free",
                    "ns",
                    [statistics.median(run) for run in samples],
                    False,
                    p99=percentile(list(itertools.chain(*samples)), 0.99),
                )


def _traced_steps(torch: Any, steps: int) -> list[tuple[str, int, int]]:
    """What PyTorch allocates and frees in some training steps of a small transformer: which, its address, its bytes."""
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 4).cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        loss = model(torch.randn(16, 256, 512, device="cuda")).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    for _ in range(3):
        step()
    torch.cuda.memory._record_memory_history(max_entries=200_000, stacks="python", context=None)
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    (told, *_) = torch.cuda.memory._snapshot()["device_traces"]
    torch.cuda.memory._record_memory_history(enabled=None)
    words = {"alloc": "allocate", "free_completed": "free"}
    return [(words[each["action"]], each["addr"], each["size"]) for each in told if each["action"] in words]


def _replay_ns(pair: Pair, trace: list[tuple[str, int, int]]) -> list[int]:
    """What each call of *trace* takes; what is left is freed, untimed."""
    allocate, free = pair
    held: dict[int, Any] = {}
    found = []
    for word, address, size in trace:
        if word == "allocate":
            started = time.perf_counter_ns()
            held[address] = allocate(size)
        elif address in held:
            block = held.pop(address)
            started = time.perf_counter_ns()
            free(block)
        else:
            continue  # it was there before the trace began
        found.append(time.perf_counter_ns() - started)
    for block in held.values():
        free(block)
    return found


@registry.add("device_memory_steps")
def device_memory_steps(runs: int) -> Iterator[Figure]:
    """All that three training steps allocate and free, as PyTorch did it, on each allocator: the sum for a step."""
    torch, driver = _needs_gpu()
    from actorgrid.device_memory import CudaMemory, DevicePool

    steps = 3
    trace = _traced_steps(torch, steps)
    torch.cuda.empty_cache()
    with DevicePool(CudaMemory(), 2 * POOL_BYTES) as pool:
        for name, pair in _allocators(pool, torch, driver).items():
            _replay_ns(pair, trace)
            samples = [_replay_ns(pair, trace) for _ in range(runs)]
            torch.cuda.synchronize()
            yield Figure(
                f"{name}: a step's {len(trace) // steps} calls",
                "us",
                [sum(run) / steps / 1000 for run in samples],
                False,
                note=f"a call: median {statistics.median(itertools.chain(*samples)):.0f} ns",
            )


@registry.add("torch_pool")
def torch_pool(runs: int) -> Iterator[Figure]:
    """Steps of a small transformer with PyTorch's allocator and with a pool, by turns, each in a process of its own."""
    _needs_gpu()
    times: dict[str, list[float]] = {"its own allocator": [], "pool": []}
    losses: list[list[float]] = []
    for name, kept in list(times.items()) * runs:
        done = subprocess.run(
            [sys.executable, "-c", TRAIN, name, str(STEPS)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
        )
        taken, told = json.loads(done.stdout)
        kept.append(taken)
        losses.append(told)
    same = all(each == losses[0] for each in losses)
    for name, kept in times.items():
        yield Figure(
            f"step of a small transformer, {name}", "ms", kept, False, note=f"losses {'the same' if same else 'DIFFER'}"
        )


def multiply(rounds: int) -> float:
    """Seconds for so many products of two matrices, in a process that keeps the matrix."""
    import torch

    matrix = globals().setdefault("kept", None)
    if matrix is None:
        matrix = globals()["kept"] = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
        for _ in range(20):
            matrix @ matrix
        torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(rounds):
        matrix @ matrix
    torch.cuda.synchronize()
    return time.perf_counter() - started


@registry.add("gpu_task")
def gpu_task(runs: int) -> Iterator[Figure]:
    """A task of two seconds on a GPU through a warm session worker, against the same function called here, by turns."""
    _needs_gpu()
    multiply(5)
    here, there, more = [], [], []
    with actorgrid.LocalCluster(gpus=None) as cluster, cluster.client(keep_alive_s=600) as client:
        client.submit(multiply, 5, gpus=1).result(120)
        for turn in range(2 * runs):
            taken: dict[bool, float] = {}
            for through in (True, False) if turn % 2 else (False, True):
                started = time.perf_counter()
                if through:
                    client.submit(multiply, ROUNDS, gpus=1).result(120)
                else:
                    multiply(ROUNDS)
                taken[through] = time.perf_counter() - started
            here.append(taken[False])
            there.append(taken[True])
            more.append(100 * (taken[True] / taken[False] - 1))
    yield Figure("task on a GPU, called", "s", here, False)
    yield Figure("the same through the cluster", "s", there, False)
    yield Figure("what the cluster adds", "%", more, False, must=2)
