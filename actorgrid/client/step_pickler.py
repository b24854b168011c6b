"""Pickles what a step calls: other steps inside are named, not sent (``actors/work/step_job.py`` reads it)."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from actorgrid.code_pickler import CodePickler
from actorgrid.errors import InvalidGraph

from .command_steps import refuse_without_files
from .dag import Dag, Step
from .futures import is_future

if TYPE_CHECKING:
    from .dag import _Step


_ATOMS = frozenset({int, float, str, bytes, bool, type(None), complex})


class PartRef:
    """Stands for a part of the bundle: the function of a call, with the number of the call's step if that is told."""

    def __init__(self, place: tuple[int, int], number: int | None = None) -> None:
        self.place = place
        self.number = number


class PartNames:
    """What stands for steps in one part of a bundle. *places*: where parts of earlier steps are; ``taken`` has the
    numbers of steps whose values are named, ``streams`` of those whose items are."""

    def __init__(self, dag: Dag, steps: list[_Step], places: dict[int, tuple[int, int]]) -> None:
        self._dag = dag
        self._steps = steps
        self._places = places
        self.taken: dict[int, None] = {}
        self.streams: dict[int, None] = {}

    def name(self, value: Any) -> tuple[Any, ...] | None:
        """What stands for a step, or for a part of the bundle; ``None`` for all else."""
        if isinstance(value, PartRef):
            return ("part", *value.place) if value.number is None else ("of", value.number, *value.place)
        if isinstance(value, Step):
            return self._of_step(value)
        if is_future(value):
            raise InvalidGraph(
                "a step cannot take a future",
                asked=repr(value)[:100],
                hint="add its call to the graph, or its result()",
            )
        return None

    def _of_step(self, step: Step[Any]) -> tuple[Any, ...]:
        if step.dag is not self._dag:
            raise InvalidGraph(f"step {step.id} is of another graph", asked=step.id, hint="add it to this one")
        request = self._steps[step.number].request
        kind = request["kind"]
        if kind == "command":
            refuse_without_files(step.id, request)
        self.taken[step.number] = None
        if kind == "value":
            return ("part", *self._places[step.number])
        if kind == "inline":
            return ("inline", *self._places[step.number], step.number)
        if request.get("stream"):
            self.streams[step.number] = None
            return ("stream", step.number)
        return ("step", step.number)


class StepPickler(CodePickler):
    """Of anything."""

    def __init__(self, buffer: io.BytesIO, names: PartNames) -> None:
        super().__init__(buffer, protocol=5)
        self._names = names

    def persistent_id(self, value: Any) -> tuple[Any, ...] | None:
        """What is sent in the place of *value*."""
        return self._names.name(value)


class _PlainPickler(pickle.Pickler):
    """Of plain values and steps: some times as fast."""

    def __init__(self, buffer: io.BytesIO, names: PartNames) -> None:
        super().__init__(buffer, protocol=5)
        self._names = names

    def persistent_id(self, value: Any) -> tuple[Any, ...] | None:
        """What is sent in the place of *value*."""
        return None if type(value) in _ATOMS else self._names.name(value)


def plain_part(fn: PartRef, args: tuple[Any, ...], kwargs: dict[str, Any], how: Any, names: PartNames) -> bytes | None:
    """A call of plain values and steps; ``None`` where there is anything else in it."""
    if not _is_plain(args) or not _is_plain(kwargs.values()) or not _is_plain(how.values()):
        return None
    buffer = io.BytesIO()
    _PlainPickler(buffer, names).dump([fn, args, kwargs, how])
    return buffer.getvalue()


def _is_plain(values: Iterable[Any]) -> bool:
    for value in values:
        kind = type(value)
        if kind in _ATOMS or kind is Step:
            continue
        if kind in (list, tuple) and all(type(each) in _ATOMS or type(each) is Step for each in value):
            continue
        return False
    return True
