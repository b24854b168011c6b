"""What PyTorch calls for memory, called as PyTorch does: from C++, by its address, with its exceptions caught."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actorgrid.device_memory import CudaMemory, DevicePool
from actorgrid.errors import BadRequest
from tests.gpu.conftest import stub_library
from tests.gpu.drivers.build import CUDA
from tests.gpu.drivers.stubs import StubDriver

torch_entry = pytest.importorskip(
    "actorgrid.device_memory.torch_entry", reason="the entry for PyTorch is not compiled: no C++ compiler was here"
)
MIB = 2**20
CALLER = """
#include <cstring>
#include <exception>
#include <sys/types.h>
extern "C" void *call(void *(*allocate)(ssize_t, int, void *), ssize_t size, int device, void *stream, char *why) {
    try { return allocate(size, device, stream); }
    catch (const std::exception &error) { strncpy(why, error.what(), 511); return nullptr; }
}
"""


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler here: nobody can call as PyTorch does")
    folder = tmp_path_factory.mktemp("caller")
    (folder / "caller.cpp").write_text(CALLER)
    library = folder / "caller.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(folder / "caller.cpp")], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.call.restype = ctypes.c_void_p
    loaded.call.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
    return loaded


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DevicePool]:
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed: nobody would call the stub")
    stub = StubDriver(CUDA, stub_library(CUDA), tmp_path / "state")
    stub.put({"memory_mib": 64})
    for name, value in stub.variables.items():
        monkeypatch.setenv(name, value)
    ctypes.CDLL(str(stub.library), mode=ctypes.RTLD_GLOBAL)
    with DevicePool(CudaMemory(), 4 * MIB, account=torch_entry.SharedAccount) as made:
        torch_entry.connect(made, made._account, made._base, 0)
        yield made
        torch_entry.disconnect()


Allocate = Callable[..., tuple[int | None, str]]


@pytest.fixture
def allocate(caller: ctypes.CDLL) -> Allocate:
    entry = ctypes.CDLL(torch_entry.__file__)

    def call(size: int, device: int = 0, stream: int = 0) -> tuple[int | None, str]:
        why = ctypes.create_string_buffer(512)
        taken = caller.call(ctypes.cast(entry.actorgrid_torch_malloc, ctypes.c_void_p), size, device, stream, why)
        return taken, why.value.decode()

    return call


@pytest.fixture
def free() -> Callable[[int | None], None]:
    entry = ctypes.CDLL(torch_entry.__file__)
    entry.actorgrid_torch_free.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
    return lambda address: entry.actorgrid_torch_free(address, 0, 0, None)


def test_memory_comes_from_the_pool_and_goes_back(
    pool: DevicePool, allocate: Allocate, free: Callable[[int | None], None]
) -> None:
    taken = [allocate(100_000)[0] for _ in range(10)]
    assert len({*taken}) == 10 and None not in taken
    assert (pool.stats().account.blocks, torch_entry.held()) == (10, 10)
    for address in taken:
        free(address)
    assert (pool.stats().account.used, torch_entry.held()) == (0, 0)
    assert allocate(0) == (None, "")
    free(None)


def test_what_cannot_be_served_is_an_exception_with_the_reason(pool: DevicePool, allocate: Allocate) -> None:
    taken, why = allocate(5 * MIB)
    assert taken is None
    assert "OutOfDeviceMemory" in why and str(5 * MIB) in why
    assert "memory of device 1" in allocate(64, device=1)[1]
    torch_entry.disconnect()
    assert "no device pool" in allocate(64)[1]


def test_a_stream_that_is_recorded_is_waited_for(
    pool: DevicePool, allocate: Allocate, free: Callable[[int | None], None]
) -> None:
    memory = pool._memory
    side = memory.new_stream()
    address, _ = allocate(MIB)
    entry = ctypes.CDLL(torch_entry.__file__)
    entry.actorgrid_torch_record_stream(ctypes.c_void_p(address), ctypes.c_void_p(side))
    free(address)
    assert pool.stats().pending_blocks == 1
    pool.free(pool.allocate(64))
    assert pool.stats().pending_blocks == 0
    memory.end_stream(side)


def test_a_block_of_another_stream_goes_through_the_pool(
    pool: DevicePool, allocate: Allocate, free: Callable[[int | None], None]
) -> None:
    memory = pool._memory
    side = memory.new_stream()
    address, why = allocate(MIB, stream=side)
    assert address and not why
    assert (pool.stats().account.blocks, torch_entry.held()) == (1, 1)
    free(address)
    assert (pool.stats().pending_blocks, torch_entry.held()) == (1, 0)
    everything, _ = allocate(4 * MIB)
    assert everything, "it is asked for what other streams are done with where nothing else is left"
    assert pool.stats().pending_blocks == 0
    free(everything)
    assert pool.stats().account.used == 0
    memory.end_stream(side)


def test_as_many_blocks_as_there_are_are_kept(
    pool: DevicePool, allocate: Allocate, free: Callable[[int | None], None]
) -> None:
    taken = [allocate(256)[0] for _ in range(4 * MIB // 256)]
    assert len({*taken}) == len(taken) == torch_entry.held()
    assert "OutOfDeviceMemory" in allocate(1)[1]
    for address in taken:
        free(address)
    assert pool.stats().account[1:5] == (0, 4 * MIB, 0, 4 * MIB)
    with pytest.raises(BadRequest):
        pool.allocate(0)


def test_threads_that_python_does_not_know_may_call(
    pool: DevicePool, allocate: Allocate, free: Callable[[int | None], None]
) -> None:
    def churn() -> None:
        for size in range(1, 200):
            free(allocate(size * 16)[0])

    threads = [threading.Thread(target=churn) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pool.stats().account.used == 0
