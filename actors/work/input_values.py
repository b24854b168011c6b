"""Values of other tasks that a worker holds for the arguments of those that come: sent to it, or its own results."""

from __future__ import annotations

from actorgrid.errors import UnknownKey
from actorgrid.transports.task_frames import InputValue, TaskFrame
from actorgrid.transports.task_inputs import LatestValues


class InputValues:
    """Pickled values by key. What was sent ahead of a task is held until that has run, whatever else is kept.

    Who reads from the client calls ``arrived``, ``queued`` and ``given_back``; the main thread the rest.
    """

    def __init__(self) -> None:
        self._latest: LatestValues[bytes] = LatestValues()
        self._arriving: dict[int, bytes] = {}  # for the task that is read next
        self._sent: dict[int, dict[int, bytes]] = {}  # by task that waits

    def arrived(self, value: InputValue) -> None:
        """Hold a value for the task that follows."""
        self._arriving[value.key] = value.body

    def queued(self, task: TaskFrame) -> None:
        """Note that *task*, for which values may have arrived, waits now."""
        if self._arriving:
            self._sent[task.task_id], self._arriving = self._arriving, {}

    def given_back(self, task: TaskFrame) -> None:
        """Forget what was sent for a task that goes elsewhere."""
        self._sent.pop(task.task_id, None)

    def sent_bytes(self, task: TaskFrame) -> int:
        """The bytes that are held for a task that waits."""
        return sum(map(len, self._sent.get(task.task_id, {}).values())) if task.inputs else 0

    def made(self, task_id: int, value: bytes) -> None:
        """Keep a result, for tasks that may have it among their arguments."""
        self._latest.add(task_id, value, len(value))

    def take(self, task: TaskFrame) -> list[bytes]:
        """The inputs of a task that is to begin, in order. Raises UnknownKey, with the ``value_keys`` that it lacks."""
        sent = self._sent.pop(task.task_id, {})
        found = [sent.get(key) or self._latest.get(key) for key in task.inputs]
        for key, body in sent.items():
            self._latest.add(key, body, len(body))
        values = [body for body in found if body is not None]
        if len(values) < len(found):
            lacking = [key for key, body in zip(task.inputs, found, strict=True) if body is None]
            raise UnknownKey(
                "the worker does not hold inputs of the task", hint="send them again, then the task", value_keys=lacking
            )
        return values
