"""A real store: values in memory that processes share, the disk, ends of processes, and strangers."""

from __future__ import annotations

import gc
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actorgrid.errors import HostUnreachable, ObjectLost, ObjectStoreFull, UnpicklableFunction
from actorgrid.objects import stored
from actorgrid.objects.space import Held, ObjectSpace
from actorgrid.objects.stored import PickledBeside, keep
from actorgrid.transports.frames import FrameDecoder, encode_frame
from actorgrid.transports.object_frames import SECRET_BYTES, encode_hello
from tests.client.stand_in import wait_until
from tests.objects.rig import MIB, StoreProcess

MEMORY = 64 * MIB


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProcess]:
    store = StoreProcess(tmp_path_factory.mktemp("store"), MEMORY)
    yield store
    store.close()


@pytest.fixture
def space(store: StoreProcess) -> Iterator[ObjectSpace]:
    space = store.space()
    yield space
    space.close()


def put(space: ObjectSpace, value: Any) -> Held:
    beside = PickledBeside()
    with beside:
        data = pickle.dumps(value, 5, buffer_callback=beside)
    return keep(space, [data], beside)


def get(space: ObjectSpace, held: Held) -> Any:
    return stored.load(space, held.key)


def used(space: ObjectSpace) -> dict[str, Any]:
    (found,) = space.look()["spaces"]
    return dict(found)


def array(size: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def test_an_array_comes_back_as_it_was_read_only_and_without_a_copy(space: ObjectSpace) -> None:
    made = array(4 * MIB)
    held = put(space, {"a": made, "b": [made[: 2 * MIB], "text"]})
    found = get(space, held)
    assert (
        np.array_equal(found["a"], made) and np.array_equal(found["b"][0], made[: 2 * MIB]) and found["b"][1] == "text"
    )
    assert not found["a"].flags.writeable and not found["a"].flags.owndata
    assert get(space, held)["a"].ctypes.data == found["a"].ctypes.data, "both see the same memory"


def test_another_process_of_the_session_reads_it_and_one_of_another_session_does_not(
    store: StoreProcess, space: ObjectSpace
) -> None:
    made = array(MIB)
    held = put(space, made)
    friend = store.space(space.secret, owner=False)
    assert np.array_equal(stored.load(friend, held.key), made)
    stranger = store.space()
    with pytest.raises(ObjectLost):
        stored.load(stranger, held.key)


def test_values_are_brought_along_to_who_is_not_at_the_store(space: ObjectSpace) -> None:
    first, second = array(2 * MIB, 1), array(2 * MIB, 2)
    whole, other = put(space, {"a": first, "b": "text"}), put(space, second)
    loads = "import pickle, sys; print(repr(pickle.load(sys.stdin.buffer)))"
    for body, held, shown in (
        (stored.stand_in(whole), (whole,), "{'a': array("),
        (pickle.dumps([stored.StandIn(other), stored.StandIn(whole)], 5), (whole, other), "[array("),
    ):
        brought = stored.bring_along(body, held, 10 * MIB)
        done = subprocess.run([sys.executable, "-c", loads], input=brought, capture_output=True, check=True, timeout=60)
        text = done.stdout.decode()
        assert text.startswith(shown) and "'b': 'text'" in text and "dtype=uint8" in text, done.stderr
    found = pickle.loads(stored.bring_along(stored.stand_in(whole), (whole,), 10 * MIB))
    assert np.array_equal(found["a"], first) and not found["a"].flags.writeable
    assert stored.bring_along(b"small", (), 1) == b"small"
    twice = pickle.dumps([stored.StandIn(other), stored.StandIn(other)], 5)
    brought = stored.bring_along(twice, (other, other), 3 * MIB)  # it goes once, and counts once
    assert all(np.array_equal(each, second) for each in pickle.loads(brought))
    with pytest.raises(UnpicklableFunction, match="too much to send to a worker whose host has no object store"):
        stored.bring_along(stored.stand_in(other), (other,), MIB)


def test_small_values_go_along_with_the_frames(space: ObjectSpace) -> None:
    helds = [put(space, number) for number in range(50)]
    assert [get(space, held) for held in helds] == list(range(50))


def test_memory_is_freed_with_the_last_reference_and_the_last_array(space: ObjectSpace) -> None:
    held = put(space, array(4 * MIB))
    found = get(space, held)
    view = found[10:20]
    del held, found
    gc.collect()
    wait_until(lambda: used(space)["objects"][0]["references"] == 0)
    assert used(space)["objects"][0]["readers"] == 1, "a part of it is in use"
    del view
    wait_until(lambda: used(space)["count"] == 0)


def test_memory_that_was_freed_is_used_again_and_never_what_is_being_read(space: ObjectSpace) -> None:
    kept = [get(space, put(space, array(2 * MIB, seed))) for seed in range(5)]
    for seed in range(100, 140):
        assert np.array_equal(get(space, put(space, array(3 * MIB, seed))), array(3 * MIB, seed))
    for seed, found in enumerate(kept):
        assert np.array_equal(found, array(2 * MIB, seed))


def test_what_a_reader_writes_to_its_own_copy_nobody_sees_and_the_next_object_is_seen_there(
    space: ObjectSpace,
) -> None:
    made = bytearray(array(4 * MIB).tobytes())
    buffer = pickle.PickleBuffer(made)
    beside = PickledBeside()
    beside.own_copies.add(id(buffer))
    with beside:
        data = pickle.dumps(buffer, 5, buffer_callback=beside)
    held = keep(space, [data], beside)
    found = get(space, held)
    found[0:MIB] = bytes(MIB)
    assert bytes(get(space, held)[MIB : 2 * MIB]) == bytes(made[MIB : 2 * MIB])
    friend = ObjectSpace(type(space._connection)(space.path), space.secret, space.about._replace(owner=False))
    assert bytes(stored.load(friend, held.key)) == bytes(made)
    del found, held
    gc.collect()
    again = array(4 * MIB, 5)
    wait_until(lambda: used(space)["count"] == 0)
    assert np.array_equal(get(space, put(space, again)), again)


def test_more_than_the_memory_goes_to_the_disk_and_is_read_from_there(space: ObjectSpace) -> None:
    helds = [put(space, array(8 * MIB, seed)) for seed in range(12)]
    found = used(space)
    assert found["memory_bytes"] <= MEMORY and found["disk_bytes"] >= 12 * 8 * MIB - MEMORY
    for seed, held in enumerate(helds):
        assert np.array_equal(get(space, held), array(8 * MIB, seed))
    helds.clear()
    del held
    wait_until(lambda: used(space)["count"] == used(space)["disk_bytes"] == 0)


def test_one_object_may_be_larger_than_the_memory(space: ObjectSpace) -> None:
    made = array(MEMORY + 5 * MIB)
    held = put(space, made)
    assert used(space)["memory_bytes"] == 0
    assert np.array_equal(get(space, held), made)


def test_a_full_store_refuses_by_name_and_goes_on(store: StoreProcess, space: ObjectSpace) -> None:
    with pytest.raises(ObjectStoreFull, match="larger than the store"):
        put(space, np.zeros(300 * MIB, np.uint8))
    assert get(space, put(space, "still here")) == "still here"


def test_all_of_a_session_is_freed_when_its_process_is_killed(store: StoreProcess, space: ObjectSpace) -> None:
    secret = os.urandom(SECRET_BYTES)
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        mine = store.space(secret)
        held = put(mine, array(8 * MIB))
        os.write(theirs, pickle.dumps(held.key))
        threading.Event().wait()
    os.close(theirs)
    key = pickle.loads(os.read(ours, 4096))
    friend = store.space(secret, owner=False)
    found = stored.load(friend, key)
    os.kill(pid, 9)
    os.waitpid(pid, 0)

    def is_over() -> bool:
        try:
            stored.load(friend, key)
        except ObjectLost as error:
            return "owner's session has ended" in str(error)
        return False

    wait_until(is_over)
    assert np.array_equal(found, array(8 * MIB)), "what is in use stays readable"


def test_a_store_that_died_is_another_one_and_says_that_what_lay_in_it_is_lost(tmp_path: Path) -> None:
    store = StoreProcess(tmp_path)
    space = store.space()
    held = put(space, array(MIB))
    found = get(space, held)
    store.kill()
    store.start()
    with pytest.raises(ObjectLost, match="started again"):
        get(space, held)
    assert np.array_equal(found, array(MIB))
    again = put(space, array(MIB, 3))
    assert np.array_equal(get(space, again), array(MIB, 3))
    del held
    gc.collect()
    assert used(space)["count"] == 1
    store.close()


def test_where_there_is_no_store_the_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actorgrid.objects.connection.CONNECT_PATIENCE_S", 0.1)
    store = StoreProcess(tmp_path)
    store.kill()
    with pytest.raises(HostUnreachable, match="object store"):
        put(store.space(), 1)


def test_many_threads_share_a_connection(space: ObjectSpace) -> None:
    wrong: list[Any] = []

    def work(seed: int) -> None:
        for step in range(20):
            made = array(MIB + 17 * seed, 100 * seed + step)
            if not np.array_equal(get(space, put(space, made)), made):
                wrong.append((seed, step))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    wait_until(lambda: used(space)["count"] == 0)


def test_a_forked_child_reads_by_a_connection_of_its_own_and_drops_nothing_of_its_parents(space: ObjectSpace) -> None:
    held = put(space, array(2 * MIB))
    found = get(space, held)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if np.array_equal(stored.load(space, held.key), found) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert np.array_equal(get(space, held), found)


def test_a_reader_cannot_write_by_mistake(space: ObjectSpace) -> None:
    found = get(space, put(space, array(2 * MIB)))
    with pytest.raises(ValueError):
        found.flags.writeable = True


def test_an_object_that_could_not_be_written_leaves_nothing(
    space: ObjectSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(space, "_fill", fail)
    with pytest.raises(ObjectStoreFull, match="No space left"):
        put(space, array(2 * MIB))
    monkeypatch.undo()
    assert used(space)["count"] == 0


def test_address_space_that_is_bounded_lets_each_object_be_mapped_by_itself(
    space: ObjectSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mmap

    real: Callable[..., mmap.mmap] = mmap.mmap

    def bounded(fd: int, size: int, *args: Any, **more: Any) -> mmap.mmap:
        if args and args[0] & mmap.MAP_PRIVATE and size >= MEMORY:
            raise OSError(12, "Cannot allocate memory")
        return real(fd, size, *args, **more)

    monkeypatch.setattr("actorgrid.objects.space.mmap.mmap", bounded)
    made = array(2 * MIB)
    assert np.array_equal(get(space, put(space, made)), made)


STRANGERS = [
    b"\xff" * 100,
    encode_frame(["open", 1, 0, b"x" * SECRET_BYTES, {}]),
    encode_frame(["hello", {"version": 99}]),
    encode_hello() + encode_frame(["create", 1, 0, 10**6]),
    encode_hello() + encode_frame(["seal", 1, 0]),
    encode_hello() + encode_frame(["get", 1, 0, ["x"], None]),
    encode_hello() + encode_frame(["hold", 0, ["5" * 16, -1, "", 1], 0]),
    encode_hello() + encode_frame(["drop", -1, []]),
    encode_hello() + encode_frame([["nested"], 1]),
    b"\x00\x00\x40\x00" + b"A" * 5000,
]


@pytest.mark.parametrize("said", STRANGERS, ids=range(len(STRANGERS)))
def test_a_stranger_is_refused_and_the_store_goes_on(store: StoreProcess, space: ObjectSpace, said: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.settimeout(20)
        stranger.connect(store.path)
        stranger.sendall(said)
        last = b""
        try:
            while data := stranger.recv(65536):
                last = data
        except ConnectionResetError:
            pass
    if last:
        assert FrameDecoder().feed(last)[-1][0] in ("refused", "welcome")
    assert get(space, put(space, 7)) == 7


def test_one_that_stays_silent_gives_way_to_others(store: StoreProcess, space: ObjectSpace) -> None:
    silent = []
    for _ in range(80):
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        one.connect(store.path)
        silent.append(one)
    fresh = store.space()
    assert get(fresh, put(fresh, 7)) == 7
    for one in silent:
        one.close()


def test_the_files_of_the_disk_have_no_names(store: StoreProcess, space: ObjectSpace) -> None:
    held = put(space, array(MEMORY + MIB))
    assert list((store.folder / "files").iterdir()) == []
    del held


def test_a_descriptor_for_reading_cannot_be_written_to(space: ObjectSpace) -> None:
    held = put(space, array(2 * MIB))
    space.read(held.key)
    kept: dict[str, int] = {}
    taken = ObjectSpace(type(space._connection)(space.path), space.secret, space.about._replace(owner=False))
    original = taken.took_descriptor

    def took(kind: str, fd: int, writable: bool) -> None:
        kept[kind] = os.dup(fd)
        original(kind, fd, writable)

    taken.took_descriptor = took  # type: ignore[method-assign]
    taken.read(held.key)
    with pytest.raises(OSError):
        os.pwrite(kept["memory"], b"x", 0)
    with pytest.raises(OSError):
        os.ftruncate(kept["memory"], 0)
    os.close(kept["memory"])
