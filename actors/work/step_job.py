"""Runs steps of a graph in a worker, one after the other, and leaves what they gave in one file.

A step's call is a part of the graph's bundle (``actorgrid/dag/bundle.py``): a pickled
``[function, args, kwargs, how]``, in which persistent ids stand for what is elsewhere::

    ("part", offset, size)            a value of its own in the bundle: a function of several steps, a shared value
    ("step", number)                  what another step gave
    ("stream", number)                the items of another step, which may still run
    ("inline", offset, size, number)  the call of a step that is computed anew here
    ("of", number, offset, size)      the function of a call, which comes first in it, and the number of its step

Numbers are those in the graph; in a bundle of further steps (``actorgrid/graph_extension.py``) they count from the
first of these, and a call says its own, from which the others follow.

*how* is a dict: ``word``, whether what it gives is told to the graph, if it is a number, a truth or a short text;
``digest``, whether its digest is; ``stream``, whether it gives items, one by one (item_spool.py, live_items.py);
``sweep``, the sweep that it is a trial of (``actorgrid/client/dag.py``); ``until``, a function of a value that says
whether a loop is done.

Only workers import this: here users' bytes become objects.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import mmap
import pickle  # nosec B403 - a worker exists to run what its authenticated owner sent
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CoroutineType
from typing import Any

import actorgrid
from actorgrid import task_context
from actorgrid.actors.ledger.graph_checks import is_word
from actorgrid.actors.ledger.graph_records import StepResultRecord
from actorgrid.dag.bundle import read_part
from actorgrid.dag.early_stopping import STOPPED, StoppedTrial
from actorgrid.dag.step_files import StepFiles, is_pack
from actorgrid.dag.step_items import items_of
from actorgrid.errors import DependencyFailed, InputLost, InvalidGraph, StoppedEarly
from actorgrid.graph_extension import GraphExtension, write_extension
from actorgrid.import_environment import environment_of, take
from actorgrid.task_context import RunningCall
from actorgrid.transports.task_frames import decode_result, encode_result

from .function_call import describe_failure, dump_value
from .item_spool import ITEMS, ItemSpool
from .live_items import ItemDoor, KeptItems, LiveItems
from .step_results import with_index
from .work_records import CallSpec, FunctionSpec

RESULTS_BYTES_MAX = 512 * 1024
"""Once several steps have given so much, the others are left to another attempt: a file holds one large value."""
PARTS_KEPT = 256
"""Functions and shared values of a bundle that a process keeps for its next call."""
INLINE_DEPTH_MAX = 100
_kept: dict[tuple[str, int], Any] = {}


def run_steps(spec: CallSpec, write: Callable[[bytes], None]) -> int:
    """Run the steps of an attempt and *write* what they gave; gives the exit code: 0 unless one of them failed."""
    function = spec["function"]
    steps = _Steps(function, spec["id"])
    parts: list[bytes] = []
    results: list[StepResultRecord] = []
    size = 0
    code = 0
    for number, offset, length in function["steps"]:
        if size > RESULTS_BYTES_MAX:
            break
        running = RunningCall((spec["job_id"], 0), spec["timeout_s"])
        running.retries_left = None
        task_context.begins(running)
        began = time.perf_counter()
        said: dict[str, Any] = {}
        try:
            value, how = steps.call(number, offset, length, running)
            further = b""
            if isinstance(value, GraphExtension):
                further = _further_steps(value, how)
                value = value.value
            if how.get("stream"):
                data = _spool(function).write_all(value)
                value = None
            else:
                data = encode_result(dump_value(value, function["max_result_bytes"]))
            steps.settle()
            steps.gave(number, value)
            if how.get("word") and is_word(value):
                said["word"] = value
            if isinstance(value, StoppedTrial):
                said["word"] = STOPPED
            elif how.get("digest"):
                said["digest"] = hashlib.sha256(data).hexdigest()
            if "until" in how:
                said["word"] = bool(how["until"](value))
        except BaseException as error:  # noqa: BLE001 - the outermost loop of a step: whatever it raises is its result
            named, exception = describe_failure(error)
            if steps.broken is not None:  # whatever the step made of that: it is no failure of its own
                named, exception = steps.broken, None
            data, further, code = encode_result(error=named, exception=exception), b"", 1
            print(named.details.get("traceback", ""), file=sys.stderr, end="")
        took_s = time.perf_counter() - began
        result: StepResultRecord = {"ok": code == 0, "offset": size, "size": len(data), "took_s": took_s}
        results.append({**result, **said})  # type: ignore[typeddict-item]
        parts.append(data + further)
        size += len(data) + len(further)
        if code:
            break
    write(with_index(parts, results))
    return code


def _spool(function: FunctionSpec) -> ItemSpool:
    folder = Path(function["result_path"]).parent
    path, takers = folder / ITEMS, folder
    if "items" in function:
        path, takers = Path(function["items"]["path"]), Path(function["items"]["takers"])
    return ItemSpool(path, takers, function["max_result_bytes"])


def _further_steps(extension: GraphExtension, how: dict[str, Any]) -> bytes:
    """What a step leaves behind its value. Raises InvalidGraph for one of which nobody expects it."""
    if not how.get("extends"):
        raise InvalidGraph(
            "the step gives further steps, which its graph does not expect of it",
            asked=f"{len(extension.request['steps'])} steps",
            hint="add it with extends=True",
        )
    return write_extension(extension)


class _Steps:
    """The bundle and the inputs of one attempt."""

    def __init__(self, function: FunctionSpec, attempt_id: str) -> None:
        self._digest = str(function["digest"])
        self._inputs = {int(number): place for number, place in function.get("step_inputs", {}).items()}
        self._live = {int(number) for number in function.get("live_inputs", ())}
        self._streams: dict[int, LiveItems] = {}
        self._over: dict[int, KeptItems] = {}
        self._attempt_id = attempt_id
        self._door: ItemDoor | None = None
        self._values: dict[int, Any] = {}
        self._depth = 0
        self._at = 0
        self._base = 0
        with open(function["payload_path"], "rb") as file:
            self._bundle = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        environment = environment_of(self._bundle[-65_536:].tobytes())
        if environment is not None:
            take(environment)

    def call(self, number: int, offset: int, size: int, running: RunningCall | None) -> tuple[Any, dict[str, Any]]:
        """Run a call of the bundle; gives its value, and how it is to be told."""
        self._at, self._base = number, 0
        fn, args, kwargs, how = self._load(offset, size)
        if running is not None:
            running.function_name = getattr(fn, "__name__", "")
            running.sweep = how.get("sweep")
        try:
            value = fn(*args, **kwargs)
            if isinstance(value, CoroutineType):
                value = asyncio.run(value)
        except StoppedEarly as stopped:
            if "sweep" not in how:
                raise
            value = StoppedTrial(int(stopped.details["step"]), float(stopped.details["metric"]))
        return value, how

    def gave(self, number: int, value: Any) -> None:
        """Keep what a step gave, for those after it."""
        self._values[number] = value

    @property
    def broken(self) -> InputLost | None:
        """Why what was made of items does not count; ``None``: it may."""
        return next((each.broken for each in self._streams.values() if each.broken is not None), None)

    def settle(self) -> None:
        """Wait until the steps whose items were taken have succeeded. Raises InputLost."""
        for live in self._streams.values():
            live.settle()

    def items(self, number: int) -> Iterator[Any]:
        """The items of the step that has this number in the bundle, as they come. Raises DependencyFailed."""
        number += self._base
        if number not in self._live:
            return self._over.setdefault(number, KeptItems(items_of(self._kept(number))))
        if number not in self._streams:
            if self._door is None:
                self._door = actorgrid.connect().http
            graph_id = self._attempt_id.partition(".")[0]
            self._streams[number] = LiveItems(self._door, graph_id, number, self._attempt_id)
        return self._streams[number]

    def value(self, number: int) -> Any:
        """What another step gave. Raises DependencyFailed."""
        if number in self._values:
            return self._values[number]
        data = self._kept(number)
        if is_pack(data):
            return StepFiles(data)
        result = decode_result(data)
        if result.value is None:
            raise DependencyFailed(f"step {number} gave no value", asked=str(number), found=str(result.error))
        return pickle.loads(result.value)  # nosec B301 - a worker reads what a worker of the same owner wrote

    def _kept(self, number: int) -> bytes:
        place = self._inputs.get(number)
        if place is None:
            raise DependencyFailed(f"the call takes what step {number} gave, which it does not depend on")
        path, offset, size = str(place[0]), int(place[1]), int(place[2])
        try:
            with open(path, "rb") as file:
                file.seek(offset)
                return file.read(size)
        except OSError as error:
            raise DependencyFailed(f"what step {number} gave is gone: {error.strerror}", asked=str(number)) from None

    def part(self, offset: int, size: int) -> Any:
        """A value of the bundle, kept for the next call of this process."""
        key = self._digest, offset
        if key not in _kept:
            value = self._load(offset, size)
            if len(_kept) >= PARTS_KEPT:
                _kept.clear()
            _kept[key] = value
        return _kept[key]

    def inline(self, offset: int, size: int, number: int) -> Any:
        """The value of a step that is computed anew."""
        if self._depth >= INLINE_DEPTH_MAX:
            raise DependencyFailed("inline steps are nested too deep", found=f"{INLINE_DEPTH_MAX} levels")
        self._depth += 1
        at, base = self._at, self._base
        try:
            return self.call(number + base, offset, size, None)[0]
        finally:
            self._depth -= 1
            self._at, self._base = at, base

    def function(self, number: int, offset: int, size: int) -> Any:
        """The function of the call that is read now, whose step has that number among the further ones."""
        self._base = self._at - number
        return self.part(offset, size)

    def step(self, number: int) -> Any:
        """What the step gave that has this number in the bundle."""
        return self.value(number + self._base)

    def _load(self, offset: int, size: int) -> Any:
        return _StepUnpickler(read_part(self._bundle, offset, size), self).load()


class _StepUnpickler(pickle.Unpickler):
    """An unpickler that finds what persistent ids stand for."""

    def __init__(self, data: bytes, steps: _Steps) -> None:
        super().__init__(io.BytesIO(data))
        self._steps = steps

    def persistent_load(self, pid: Any) -> Any:
        match pid:
            case ("step", int(number)):
                return self._steps.step(number)
            case ("of", int(number), int(offset), int(size)):
                return self._steps.function(number, offset, size)
            case ("stream", int(number)):
                return self._steps.items(number)
            case ("part", int(offset), int(size)):
                return self._steps.part(offset, size)
            case ("inline", int(offset), int(size), int(number)):
                return self._steps.inline(offset, size, number)
        raise DependencyFailed(f"the call refers to {pid!r}, which is nothing that a graph has")
