"""Every order in which the steps of two processes can happen to shared memory, tried one after the other.

A process's steps are those of ``hotpath/reference/message_ring.py``. Its stores wait in its own buffer and reach the
memory later: those to different places in any order, but a ``release`` after all before it; a ``fence`` and a ``swap``
wait until the buffer is empty, and a process reads its own stores first. That allows all that x86 does (TSO), and of
what Arm does the order of stores; loads happen in the order of the program, as acquiring loads do.

Besides the ring's steps there are system calls, before which the buffer is empty: ``("sleep", bell)``, which waits
until it was rung and hushes it, ``("wake", bell)``, which rings it, ``("send", channel, value)`` and ``("receive",
channel)`` of a socket, which keeps order. And there is the lock of the interpreter: ``("lock", name)`` waits until
nobody has it, ``("unlock", name)`` is a release.

A state is the memory, both buffers, and what both processes have done: a process is a function of what it was answered,
so that it is played again from its beginning for each, and no state is looked at twice.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from actorgrid.hotpath.reference.message_ring import Step

Program = Callable[[], Generator[Step, Any, Any]]
WORD_BYTES = 4
"""Bytes reach the memory by so many at once."""


class Store(NamedTuple):
    """A store that has not reached the memory."""

    place: Any
    value: Any
    release: bool


class World(NamedTuple):
    """What there is at one moment."""

    memory: tuple[tuple[Any, Any], ...]
    buffers: tuple[tuple[Store, ...], ...]
    answers: tuple[tuple[Any, ...], ...]


class Outcome(NamedTuple):
    """What was found."""

    worlds: int
    stuck: list[tuple[tuple[Any, ...], ...]]
    """Where nobody could go on and not all were done."""
    results: set[tuple[Any, ...]]


def explore(programs: tuple[Program, ...], worlds_max: int = 400_000) -> Outcome:
    """Try every order, up to one that gets stuck. Raises what a program raises in any of them; fails beyond
    *worlds_max*."""
    first = World((), ((),) * len(programs), ((),) * len(programs))
    seen, todo = {first}, [first]
    stuck: list[tuple[tuple[Any, ...], ...]] = []
    results: set[tuple[Any, ...]] = set()
    known: dict[tuple[int, tuple[Any, ...]], tuple[Step | None, Any]] = {}
    while todo and not stuck:
        world = todo.pop()
        following, ends = [], []
        for number, program in enumerate(programs):
            following += _drained(world, number)
            key = number, world.answers[number]
            if key not in known:
                known[key] = _next(program, world.answers[number])
            step, result = known[key]
            ends.append(result)
            if step is not None:
                following += _taken(world, number, step)
        if not following:
            if None in ends:
                stuck.append(world.answers)
            results.add(tuple(ends))
        for each in following:
            if each not in seen:
                assert len(seen) < worlds_max, "too many worlds: a smaller case"
                seen.add(each)
                todo.append(each)
    return Outcome(len(seen), stuck, results)


def _next(program: Program, answers: tuple[Any, ...]) -> tuple[Step | None, Any]:
    """The step that is due after these answers; where there is none, what it gave, in a tuple."""
    running = program()
    try:
        step = next(running)
        for answer in answers:
            step = running.send(answer)
    except StopIteration as end:
        return None, (end.value,)
    return step, None


def _drained(world: World, number: int) -> list[World]:
    """The worlds in which one more store of that process has reached the memory."""
    buffer, found = world.buffers[number], []
    for at, store in enumerate(buffer):
        before = buffer[:at]
        if (store.release and before) or any(each.place == store.place or each.release for each in before):
            continue
        memory = dict(world.memory)
        memory[store.place] = store.value
        found.append(_changed(world, number, memory=memory, buffer=before + buffer[at + 1 :]))
    return found


def _taken(world: World, number: int, step: Step) -> list[World]:
    """The world after that step; none while it has to wait."""
    memory, buffer = dict(world.memory), world.buffers[number]
    match step:
        case ("load", place):
            own = [store.value for store in buffer if store.place == place]
            return [_changed(world, number, answer=own[-1] if own else memory.get(place, 0))]
        case ("unlock", name):
            return [_changed(world, number, buffer=(*buffer, Store(("lock", name), 0, True)))]
        case ("lock", name):
            if memory.get(("lock", name)) or any(store.place == ("lock", name) for store in buffer):
                return []
            memory["lock", name] = 1
            return [_changed(world, number, memory=memory)]
        case ("store" | "release" as kind, place, value):
            return [_changed(world, number, buffer=(*buffer, Store(place, value, kind == "release")))]
        case ("write", position, data):
            words = range(0, len(data), WORD_BYTES)
            stores = [Store(("word", position + at), data[at : at + WORD_BYTES], False) for at in words]
            return [_changed(world, number, buffer=(*buffer, *stores))]
        case ("read", position, count):
            words = range(position, position + count, WORD_BYTES)
            found = b"".join(memory.get(("word", at), b"????") for at in words)
            return [_changed(world, number, answer=found[:count])]
        case _ if buffer:
            return []  # the others wait for the buffer
        case ("fence",):
            return [_changed(world, number)]
        case ("swap", place, value):
            before = memory.get(place, 0)
            memory[place] = value
            return [_changed(world, number, memory=memory, answer=before)]
        case ("send", channel, value):
            memory["channel", channel] = (*memory.get(("channel", channel), ()), value)
            return [_changed(world, number, memory=memory)]
        case ("receive", channel) if memory.get(("channel", channel)):
            first, *rest = memory["channel", channel]
            memory["channel", channel] = tuple(rest)
            return [_changed(world, number, memory=memory, answer=first)]
        case ("wake", bell):
            memory["bell", bell] = 1
            return [_changed(world, number, memory=memory)]
        case ("sleep", bell) if memory.get(("bell", bell)):
            memory["bell", bell] = 0
            return [_changed(world, number, memory=memory)]
    return []


def _changed(
    world: World,
    number: int,
    *,
    memory: dict[Any, Any] | None = None,
    buffer: tuple[Store, ...] | None = None,
    answer: Any = "drained",
) -> World:
    """*world* with that changed; the process goes on unless only its buffer drained."""
    only_drained = answer == "drained" and memory is not None and buffer is not None
    buffers, answers = list(world.buffers), list(world.answers)
    if buffer is not None:
        buffers[number] = buffer
    if not only_drained:
        answers[number] = (*answers[number], None if answer == "drained" else answer)
    kept = world.memory if memory is None else tuple(sorted(memory.items(), key=repr))
    return World(kept, tuple(buffers), tuple(answers))
