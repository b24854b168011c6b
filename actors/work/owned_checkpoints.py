"""The state of an actor that lives with its creator: saved to that, and taken up by the next incarnation from it.

The creator's process is there as long as the actor may be begun again, so that nothing else has to keep the state. What
comes of an incarnation that is over goes to nobody: each has its own stream to the creator.
"""

from __future__ import annotations

import os
import pickle  # nosec B403 - of the user's own actor, from its creator
import threading
import time
from collections.abc import Callable
from typing import Any

from actorgrid.checkpoints import CheckpointPolicy, EnteredCheckpoint
from actorgrid.errors import CallTimeout
from actorgrid.task_context import CHECKPOINT_FROM
from actorgrid.transports.actor_states import STATE_BYTES_MAX, state_pieces

from .actor_checkpoints import LOOK_S, WAIT_S, ActorCheckpoints
from .item_stream import ItemGrants

Kept = tuple[int, bytes]
"""Which incarnation saved a state, and the state, pickled."""


class OwnedCheckpoints(ActorCheckpoints):
    """Of one incarnation. *kept*: the last state that its creator has of those before it."""

    bytes_max = STATE_BYTES_MAX

    def __init__(self, thing: Any, policy: CheckpointPolicy, incarnation: int, kept: Kept | None) -> None:
        super().__init__(thing, policy)
        self._incarnation = incarnation
        self._kept = kept
        self._sizes: dict[int, int] = {}  # of those that may be waited for

    def load(self) -> None:
        """As of ActorCheckpoints."""
        kept, self._kept = self._kept, None
        if kept is not None:
            os.environ[CHECKPOINT_FROM] = str(kept[0])
            self._thing.load(pickle.loads(kept[1]))  # nosec B301 - as above

    def connect(self, grants: ItemGrants, send: Callable[[bytes], object], wait: Callable[[], None]) -> None:
        """Note how the creator is told. *grants*: not used up, once it has all that was given; *send*: one item, of
        which the last is to be counted as given by us; *wait*: in the main thread, for the creator; it raises
        TaskCancelled where that is gone."""
        self._grants, self._send, self._wait = grants, send, wait

    def leave(self, number: int, data: bytes) -> None:
        """As of ActorCheckpoints."""
        for piece in state_pieces(number, data):
            self._send(piece)
        self._grants.give()
        self._sizes = {number: len(data)}

    def wait(self, number: int) -> EnteredCheckpoint:
        """Wait until the creator has the state. Raises TaskCancelled where that is gone, CallTimeout."""
        size_bytes = self._sizes.get(number, 0)
        if threading.current_thread() is threading.main_thread():
            self._wait()
            return EnteredCheckpoint(self._incarnation, number, size_bytes)
        until = time.monotonic() + WAIT_S
        while self._grants.is_used_up:
            if time.monotonic() > until:
                raise CallTimeout(f"the actor's creator has not taken its state in {WAIT_S:g} s", asked=str(number))
            time.sleep(LOOK_S)
        return EnteredCheckpoint(self._incarnation, number, size_bytes)
