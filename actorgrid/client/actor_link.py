"""One actor as a process reaches it, and the calls that it was asked: state, which actor_links.py acts upon."""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from actorgrid.errors import ActorDied, ActorGridError
from actorgrid.objects.space import Held
from actorgrid.transports.frames import FrameDecoder
from actorgrid.transports.user_actor_frames import BEGUN
from actorgrid.user_actor_context import ActorReference

from .dependencies import TaskInput
from .far_actors import FarActorSocket
from .futures import LazyFuture

if TYPE_CHECKING:
    from typing import Any

    from .actor_links import ActorFuture

RETRY_S = 0.02


class ActorCall:
    """One call, from when it was made until it has its outcome."""

    __slots__ = (
        "args", "call_id", "future", "held", "inputs", "kept", "link", "method", "missing", "over", "retries",
        "timeout_s",
    )  # fmt: skip

    def __init__(self, link: ActorLink, method: str, args: bytes, timeout_s: float | None, retries: int) -> None:
        self.link = link
        self.method = method
        self.args = args
        self.timeout_s = timeout_s
        self.retries = retries  # how often it may be begun again
        self.call_id = 0  # it has one when it was sent
        self.held: tuple[Held, ...] = ()  # what its arguments need of the object store
        self.inputs: list[TaskInput] = []
        self.kept: Sequence[LazyFuture[Any]] = ()
        self.missing = 0
        self.over = False
        self.future: ActorFuture[Any]


class ActorOwner(Protocol):
    """What made an actor, in the process in which it was made."""

    def stop(self, force: bool) -> None:
        """End it: when all is done that it was asked here, or by force."""


class ActorLink:
    """One actor as this process reaches it. Written by ActorLinks with its lock held."""

    __slots__ = (
        "__weakref__",
        "asked",
        "at",
        "begun_fd",
        "cause",
        "death",
        "decoder",
        "delay_s",
        "doom",
        "doom_at",
        "far",
        "fd",
        "incarnation",
        "interrupted",
        "is_shared",
        "last_id",
        "lost",
        "next_try",
        "out",
        "over",
        "owner",
        "reference",
        "room",
        "sent",
        "sock",
        "stop_wanted",
        "unsent",
        "unused",
        "watches_out",
        "welcome",
    )  # fmt: skip

    def __init__(self, reference: ActorReference, lock: threading.Lock) -> None:
        self.reference = reference
        self.at = ""  # the host that it is on, where that is not its creator's
        self.asked = False  # whether its job is being asked about
        self.far: FarActorSocket | None = None  # the way there
        self.doom: ActorDied | None = None  # what is to be its death, once all is read that is under way
        self.doom_at = 0.0
        self.owner: ActorOwner | None = None  # where this process made it, and so hears of its starts and its end
        self.is_shared = False  # whether our handles were passed on: then it does not end when the last one here goes
        self.sock: socket.socket | None = None
        self.fd = -1
        self.decoder = FrameDecoder()
        self.out = bytearray()
        self.watches_out = False
        self.lost = True
        self.welcome = False
        self.incarnation = 0
        self.last_id = 0
        self.unsent: deque[ActorCall] = deque()
        self.sent: dict[int, ActorCall] = {}
        self.interrupted: list[ActorCall] = []  # had begun when the actor went; end when we know what became of it
        self.begun_fd = -1
        self.death: ActorDied | None = None
        self.cause: ActorGridError | None = None  # of the end of the incarnation before, where we heard it
        self.over = threading.Event()
        self.room = threading.Condition(lock)
        self.next_try = float("inf")  # when to connect; as clocks say that only go on
        self.delay_s = RETRY_S
        self.stop_wanted = False
        self.unused = False  # nobody here holds a handle any more

    @property
    def is_ours(self) -> bool:
        """Whether this process made the actor."""
        return self.owner is not None

    @property
    def pending(self) -> int:
        """The number of calls without an outcome."""
        return len(self.unsent) + len(self.sent) + len(self.interrupted)


def begun_last(link: ActorLink) -> int:
    """The id of the call that the actor has begun last."""
    if link.begun_fd < 0:
        return 0
    begun: int = BEGUN.unpack(os.pread(link.begun_fd, BEGUN.size, 0))[0]
    return begun
