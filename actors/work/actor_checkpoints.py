"""The state of an actor of the user's, saved so that its next incarnation goes on from it, on whichever host.

``save()`` gives any value that can be pickled, and ``load(value)`` takes it. Both are called between two calls of an
actor that runs one at a time. A detached one leaves a file for the agent (checkpoint_spool.py), which says what became
of it; one that lives with its creator tells that (owned_checkpoints.py).
"""

from __future__ import annotations

import hashlib
import os
import pickle  # nosec B403 - of the user's own actor, whose digest the ledger has
import sys
import time
import traceback
from abc import abstractmethod
from pathlib import Path
from typing import Any

from actorgrid.checkpoints import (
    ANSWERS_VARIABLE,
    CHECKPOINT_BYTES_MAX,
    HEAD_BYTES,
    SPOOL_VARIABLE,
    STATE_VARIABLE,
    CheckpointPolicy,
    EnteredCheckpoint,
)
from actorgrid.errors import BodyTooLarge, CallTimeout, MalformedBody, StorageError, error_from_dict
from actorgrid.task_context import ATTEMPT_NUMBER, JOB_ID

from .checkpoint_spec import check_head
from .checkpoint_spool import leave, told
from .function_call import dump_value

LOOK_S = 0.02
WAIT_S = 180.0
PIECE_BYTES = 1 << 20


class ActorCheckpoints:
    """Of one incarnation: when its state is saved; a subclass says where that goes."""

    bytes_max = CHECKPOINT_BYTES_MAX
    """Of one state, pickled."""

    def __init__(self, thing: Any, policy: CheckpointPolicy) -> None:
        self._thing = thing
        self._policy = policy
        self._number = 0
        self._calls = 0
        self._saved_at = time.monotonic()

    @abstractmethod
    def load(self) -> None:
        """Give the object the state of the last checkpoint, if there is one. Raises what its ``load`` raises."""

    @abstractmethod
    def leave(self, number: int, data: bytes) -> None:
        """Give a state away, to be kept. Raises StorageError."""

    @abstractmethod
    def wait(self, number: int) -> EnteredCheckpoint:
        """Wait until a state is kept. Raises why it is not, CallTimeout."""

    @property
    def is_timed(self) -> bool:
        """Whether the state is saved because of the time, too."""
        return self._policy.seconds > 0

    def called(self) -> None:
        """Count a call that has ended; save the state if it is time."""
        self._calls += 1
        if self._policy.calls and self._calls >= self._policy.calls:
            self.save_quietly()
        else:
            self.look()

    def look(self) -> None:
        """Save the state if there were calls, and the last time is long enough ago."""
        if self._calls and self.wait_s() == 0.0:
            self.save_quietly()

    def wait_s(self) -> float:
        """In how many seconds to look; -1: not because of the time."""
        if not self._policy.seconds or not self._calls:
            return -1.0
        return max(0.0, self._saved_at + self._policy.seconds - time.monotonic())

    def save_quietly(self) -> None:
        """Save the state; what goes wrong is said in the output, and the checkpoint before stays."""
        try:
            self.save()
        except Exception:  # noqa: BLE001 - of the user's save(), in nobody's call
            self._calls, self._saved_at = 0, time.monotonic()  # not again before the next one is due
            print("[actorgrid] the state was not saved:", file=sys.stderr)
            traceback.print_exc()

    def last(self) -> None:
        """Save what has changed since the last time, as this incarnation is to end."""
        if self._calls:
            self.save_quietly()

    def save(self) -> int:
        """Save the state and give it away; gives its number. Raises what ``save`` raises, UnpicklableResult,
        BodyTooLarge, StorageError."""
        data = dump_value(self._thing.save(), None)
        if len(data) > self.bytes_max:
            raise BodyTooLarge(
                "what save() gives is too large for a checkpoint",
                asked=f"{len(data)} bytes",
                found=f"at most {self.bytes_max}",
                hint="save what is needed to go on; large data that does not change belongs elsewhere",
            )
        self.leave(self._number + 1, data)
        self._number += 1
        self._calls, self._saved_at = 0, time.monotonic()
        return self._number

    def now(self) -> EnteredCheckpoint:
        """Save the state, and wait until the job has it."""
        return self.wait(self.save())


class JobCheckpoints(ActorCheckpoints):
    """Those of a detached actor, which are its job's."""

    def __init__(self, thing: Any, policy: CheckpointPolicy) -> None:
        super().__init__(thing, policy)
        self._folder = Path(os.environ[SPOOL_VARIABLE])
        self._answers = Path(os.environ.get(ANSWERS_VARIABLE) or self._folder)

    def load(self) -> None:
        """As of ActorCheckpoints. Raises MalformedBody and OSError, too."""
        path = os.environ.get(STATE_VARIABLE, "")
        if not path:
            return
        found = hashlib.sha256()
        with open(path, "rb") as file:
            while piece := file.read(PIECE_BYTES):
                found.update(piece)
            if found.hexdigest() != os.path.basename(path):
                raise MalformedBody("the checkpoint is not what was entered", asked=os.path.basename(path))
            file.seek(0)
            check_head(file.read(HEAD_BYTES), os.environ.get(JOB_ID, ""))
            state = pickle.load(file)  # nosec B301 - as above
        self._thing.load(state)

    def leave(self, number: int, data: bytes) -> None:
        """As of ActorCheckpoints."""
        try:
            leave(self._folder, number, lambda file: file.write(data))
        except OSError as error:
            raise StorageError(f"cannot leave the checkpoint: {error.strerror}", asked=str(self._folder)) from error

    def wait(self, number: int) -> EnteredCheckpoint:
        """Wait until a checkpoint is the job's. Raises why it is not (StaleToken, DiskFull, ...), CallTimeout."""
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            answer = told(self._answers)
            if answer is not None and answer.number >= number:
                if answer.error is not None:
                    raise error_from_dict(answer.error)
                return EnteredCheckpoint(int(os.environ.get(ATTEMPT_NUMBER, "1")), answer.number, answer.size_bytes)
            time.sleep(LOOK_S)
        raise CallTimeout(
            f"the checkpoint was not entered in {WAIT_S:g} s",
            asked=f"checkpoint {number}",
            hint="it is entered as soon as the agent and a majority of the voters can be reached",
        )
