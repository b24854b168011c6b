"""Many real processes at one directory, killed and refused between any two of their system calls."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random

import pytest

from actorgrid.errors import ActorGridError, DiskFull, NameTaken, Overloaded, StorageError
from actorgrid.supervisors.ref import Ref
from actorgrid.supervisors.registry import Registry

FORK = multiprocessing.get_context("fork")
WRITES = {"os.symlink", "os.remove", "os.mkdir", "os.rmdir"}  # what CPython announces just before it does it
STEPS_MAX = 40
WAIT_S = 30.0


def links(folder: Path) -> set[tuple[str, str]]:
    """Who has what, as the links say: address and the name of its note. Others may be at work meanwhile."""
    found = set()
    for path in (folder / "names/unique").iterdir():
        with suppress(FileNotFoundError):
            found.add((os.readlink(path).partition("|")[0], f"u={path.name}"))
    for group in (folder / "names/group").iterdir():
        with suppress(FileNotFoundError):
            found |= {(address, f"g={group.name}") for address in os.listdir(group)}
    return found


def notes(folder: Path) -> set[tuple[str, str]]:
    """Who has what, as the index says."""
    owned = folder / "names/owned"
    found = (path for path in owned.rglob("*") if path.is_symlink())
    return {(".".join(path.parent.relative_to(owned).parts), path.name) for path in found}


def before_each_write(act: Callable[[int], None]) -> None:
    """Call *act* with the number of each change to the file system just before this process makes it, for good."""
    count, acting = 0, False

    def hook(event: str, _arguments: tuple[object, ...]) -> None:
        nonlocal count, acting
        if event in WRITES and not acting:
            count += 1
            acting = True
            try:
                act(count)
            finally:
                acting = False

    sys.addaudithook(hook)


def in_a_process(work: Callable[[], object]) -> object:
    """What *work* returned or raised in a fork of this process; its exit status when that was killed."""
    receiver, sender = FORK.Pipe(duplex=False)

    def run() -> None:
        try:
            sender.send(work())
        except ActorGridError as error:
            sender.send(error)

    process = FORK.Process(target=run)
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        process.join(WAIT_S)
        return process.exitcode
    finally:
        receiver.close()
        process.join(WAIT_S)
        process.close()


def start(folder: Path, address: str) -> Ref:
    (folder / address).touch()
    return Ref(address, "worker")


Work = Callable[[Registry, Ref], object]
OPERATIONS: dict[str, Work] = {
    "register": lambda names, me: names.register("key", me),
    "register what is taken": lambda names, me: names.register("taken", me),
    "unregister": lambda names, me: names.unregister("had", me),
    "join": lambda names, me: names.join("key", me),
    "join others": lambda names, me: names.join("group of others", me),
    "leave": lambda names, me: names.leave("group of mine", me),
    "leave others": lambda names, me: names.leave("group of both", me),
    "bury a child": lambda names, me: names.bury(f"{me.address}.1"),
}


def scene(folder: Path) -> tuple[Registry, Ref, Ref]:
    """One who acts, has things and has a child with things; and another who has things."""
    names = Registry(folder)
    me, child, other = start(folder, "admin.1"), start(folder, "admin.1.1"), start(folder, "admin.2")
    names.register("had", me)
    names.join("group of mine", me)
    names.register("a child's", child)
    for member in (me, child, other):
        names.join("group of both", member)
    names.register("taken", other)
    names.join("group of others", other)
    return names, me, other


@pytest.mark.parametrize("what", OPERATIONS)
def test_who_is_killed_between_any_two_system_calls_leaves_nothing_past_its_burial(tmp_path: Path, what: str) -> None:
    killed = 0
    for step in range(1, STEPS_MAX):
        folder = tmp_path / str(step)
        folder.mkdir()
        names, me, other = scene(folder)
        of_others = {entry for entry in links(folder) if entry[0] == other.address}

        def until(step: int = step, names: Registry = names, me: Ref = me) -> object:
            before_each_write(lambda count: os.kill(os.getpid(), signal.SIGKILL) if count == step else None)
            return OPERATIONS[what](names, me)

        if in_a_process(until) != -signal.SIGKILL:
            break
        killed += 1
        assert links(folder) <= notes(folder), "a link that no burial would find"
        names.bury(me.address)
        assert links(folder) == notes(folder) == of_others
        assert all(any(group.iterdir()) for group in (folder / "names/group").iterdir())
        for key in ("key", "had", "a child's"):
            names.register(key, other)
    assert 1 <= killed < STEPS_MAX - 1


@pytest.mark.parametrize("what", ["register", "join", "join others"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up_at_any_step_refuses_the_whole(tmp_path: Path, what: str, code: int) -> None:
    refused = 0
    for step in range(1, STEPS_MAX):
        folder = tmp_path / str(step)
        folder.mkdir()
        names, _, _ = scene(folder)
        me = start(folder, "admin.9.9")
        before = links(folder)

        def until(step: int = step, names: Registry = names, me: Ref = me) -> object:
            def fill(count: int) -> None:
                if count == step:
                    raise OSError(code, os.strerror(code), "there")

            before_each_write(fill)
            return OPERATIONS[what](names, me)

        outcome = in_a_process(until)
        if outcome is None:
            break
        refused += 1
        assert isinstance(outcome, DiskFull) and "df -i" in str(outcome)
        assert links(folder) == notes(folder) == before
        assert all(any(group.iterdir()) for group in (folder / "names/group").iterdir())
    assert 2 <= refused < STEPS_MAX - 1


def test_an_error_of_the_file_system_has_a_name(tmp_path: Path) -> None:
    names = Registry(tmp_path)
    me = start(tmp_path, "admin.1")

    def work() -> object:
        def fail(_count: int) -> None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), "there")

        before_each_write(fail)
        names.register("key", me)
        return None

    outcome = in_a_process(work)
    assert type(outcome) is StorageError and "Read-only" in outcome.found


@pytest.mark.parametrize(("times", "joins"), [(3, True), (1000, False)])
def test_who_joins_as_the_last_member_leaves_tries_again_but_not_for_ever(
    tmp_path: Path, times: int, joins: bool
) -> None:
    names = Registry(tmp_path)
    me = start(tmp_path, "admin.1")
    group = tmp_path / "names/group/workers"

    def work() -> object:
        left = 0

        def another_leaves(_count: int) -> None:
            nonlocal left
            if left < times and group.exists():
                left += 1
                group.rmdir()  # the last to leave does this

        before_each_write(another_leaves)
        names.join("workers", me)
        return left

    outcome = in_a_process(work)
    if joins:
        assert outcome == times and names.members("workers") == [me]
    else:
        assert isinstance(outcome, Overloaded) and "come and go too fast" in outcome.message
        assert not links(tmp_path) and not notes(tmp_path) and not group.exists()


def test_of_many_processes_that_want_a_key_at_once_exactly_one_gets_it(tmp_path: Path) -> None:
    names = Registry(tmp_path)
    contenders, rounds = 4, 150
    barrier = FORK.Barrier(contenders)

    def contend(ref: Ref, sender: Connection) -> None:
        won = []
        for number in range(rounds):
            barrier.wait(WAIT_S)
            try:
                names.register(f"round {number}", ref)
                won.append(number)
            except NameTaken as error:
                assert error.details["holder"] != ref.address
        sender.send(won)

    wins: dict[int, Ref] = {}
    running = []
    for number in range(1, contenders + 1):
        ref = start(tmp_path, f"admin.{number}")
        receiver, sender = FORK.Pipe(duplex=False)
        process = FORK.Process(target=contend, args=(ref, sender))
        process.start()
        sender.close()
        running.append((ref, receiver, process))
    for ref, receiver, process in running:
        for number in receiver.recv():
            assert number not in wins, "two have one key"
            wins[number] = ref
        receiver.close()
        process.join(WAIT_S)
        process.close()
    assert names.names() == {f"round {number}": wins[number] for number in range(rounds)}
    assert links(tmp_path) == notes(tmp_path)


class Churner:
    """A process that registers, joins, leaves and unregisters a few keys that others want too, until it is killed."""

    def __init__(self, folder: Path, names: Registry, address: str, seed: int) -> None:
        self.ref = start(folder, address)
        self.steps, there = FORK.Pipe(duplex=False)
        self.process: BaseProcess = FORK.Process(target=self._churn, args=(names, Random(seed), there))
        self.process.start()
        there.close()

    def _churn(self, names: Registry, random: Random, steps: Connection) -> None:
        held: set[str] = set()
        while True:
            key = f"key {random.randrange(5)}"
            if random.random() < 0.5:
                try:
                    names.register(key, self.ref)
                    held.add(key)
                except NameTaken:
                    assert key not in held
            else:
                assert names.unregister(key, self.ref) == (key in held)
                held.discard(key)
            if random.random() < 0.5:
                names.join(key, self.ref)
                assert self.ref in names.members(key)
            else:
                names.leave(key, self.ref)
                assert self.ref not in names.members(key)
            assert all(names.whereis(mine) == self.ref for mine in held), "a key changed hands"
            steps.send_bytes(b".")

    def wait_for_steps(self, count: int) -> None:
        for _ in range(count):
            assert self.steps.poll(WAIT_S), "it stands still"
            self.steps.recv_bytes()

    def kill(self) -> None:
        self.process.kill()
        self.process.join(WAIT_S)
        assert self.process.exitcode == -signal.SIGKILL, "it failed before it was killed"
        self.process.close()
        self.steps.close()


@pytest.fixture
def churners() -> Iterator[list[Churner]]:
    running: list[Churner] = []
    yield running
    for each in running:
        each.kill()


@pytest.mark.system
def test_processes_killed_at_random_leave_nothing_past_their_burial_and_disturb_nobody(
    tmp_path: Path, churners: list[Churner]
) -> None:
    names, random, kills = Registry(tmp_path), Random(7), 60
    for number in range(1, 4):
        churners.append(Churner(tmp_path, names, f"admin.{number}", number))
    for number in range(4, kills + 4):
        victim = random.choice(churners)
        victim.wait_for_steps(random.randrange(1, 30))
        churners.remove(victim)
        victim.kill()
        names.bury(victim.ref.address)
        assert not {entry for entry in links(tmp_path) if entry[0] == victim.ref.address}
        assert not (tmp_path / f"names/owned/admin/{victim.ref.address.rpartition('.')[2]}").exists()
        churners.append(Churner(tmp_path, names, f"admin.{number}", number))
    for each in churners:
        each.kill()
        names.bury(each.ref.address)
    churners.clear()
    assert links(tmp_path) == notes(tmp_path) == set()
    assert list((tmp_path / "names/group").iterdir()) == []
