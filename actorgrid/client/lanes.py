"""Which worker gets which task: decisions only, no socket, clock or thread.

A *lane* is a queue of calls of one shape and the workers leased for it. A worker is given more than one call only
while what it has is expected to last under ``BUDGET_S``: microsecond calls travel in deep batches, calls over
5 ms one by one, so that none waits behind another while a worker is free.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from actorgrid.errors import QueueFull
from actorgrid.objects.space import Held
from actorgrid.transports.task_frames import TaskAbout
from actorgrid.transports.task_inputs import LatestValues
from actorgrid.user_actor_context import MARK

from .lane_router import LEAST_LOADED, LaneRouter
from .options import WorkerShape
from .pickling import FunctionCode

if TYPE_CHECKING:
    from .dependencies import TaskInput
    from .stream_items import StreamItems
    from .worker_route import WorkerRoute

BUDGET_S = 0.005
MAX_DEPTH = 512
MAX_LANES = 256
MAX_UNSENT_BYTES = 256 * 1024
STALL_S = 0.02
TIMEOUT_GRACE_S = 2.0
UNANSWERED_S = 1.0
"""A worker that does not answer a recall for so long is not going to before its call ends."""
GROW_BACKLOG_S = 0.05
MAX_LEASE_REQUESTS = 4
MAX_PACES = 4096
MAX_OLDER_GRANTS = MAX_LEASE_REQUESTS + 1
"""So many leases in a row with too low a token: one at least was asked for after the loss, so the ledger is another."""

TRAVEL_MAX_S = 0.5
"""So much of the way to a worker is filled with calls, at most."""

Token = tuple[int, int]


class TaskCall:
    """One call of a session task, from submit to outcome.

    Once a worker may have begun it, it goes only to one whose lease has a greater token: what it writes to tells the
    runs of one call apart by that (docs/fencing.md).
    """

    __slots__ = (
        "about", "args", "attempt_number", "cancelled", "choice", "code", "done", "estimate_s", "future", "held",
        "inputs", "lane", "link", "losses_left", "missing", "priority", "stopping", "stream", "task_id", "timeout_s",
        "token",
    )  # fmt: skip

    def __init__(
        self,
        task_id: int,
        code: FunctionCode,
        args: bytes,
        timeout_s: float | None,
        priority: int,
        losses_left: int,
        lane: Lane,
        future: Any,
    ) -> None:
        self.task_id = task_id
        self.code = code
        self.args = args
        self.timeout_s = timeout_s
        self.priority = priority
        self.losses_left = losses_left
        self.lane = lane
        self.future = future
        self.link: LeasedWorker | None = None
        self.estimate_s = 0.0
        self.cancelled = False  # its value is not wanted any more
        self.done = False  # it has its outcome
        self.stream: StreamItems | None = None  # where what it yields goes
        self.stopping = False  # it was asked to stop while it ran
        self.about: TaskAbout | None = None  # what it can ask about itself, where that is more than usual
        self.attempt_number = 1
        self.token: Token | None = None  # the greatest under which it may have been begun
        self.inputs: tuple[TaskInput, ...] = ()  # what its arguments hold futures of
        self.held: tuple[Held, ...] = ()  # what its arguments need of the object store
        self.missing = 0  # how many of them are not there
        self.choice: tuple[str | None, str] = (None, "")  # its policy and key, for when it is chosen a worker later

    def ended(self) -> EndedCall:
        """What its future keeps of it once it has its outcome."""
        self.held = self.inputs = ()
        return EndedCall(self)

    def may_have_begun(self, token: Token | None) -> None:
        """A worker whose lease has *token* was sent it, and nobody can say that it did not start."""
        self.attempt_number += 1
        if token is not None and (self.token is None or token > self.token):
            self.token = token


class EndedCall:
    """What a future keeps of its call that has its outcome: without the future, which would keep itself alive."""

    __slots__ = ("cancelled", "code", "task_id")
    done, link, missing = True, None, 0

    def __init__(self, call: TaskCall) -> None:
        self.task_id = call.task_id
        self.code = call.code
        self.cancelled = call.cancelled

    def ended(self) -> EndedCall:
        """Itself."""
        return self


class LeasedWorker:
    """A leased worker and its ``calls``, in the order sent; the first one is running."""

    __slots__ = (
        "answers_recalls",
        "asked_at",
        "calls",
        "decoder",
        "fd",
        "fresh",
        "idle_since",
        "keeps_objects",
        "known",
        "lane",
        "lease_id",
        "leaving",
        "load_s",
        "lost",
        "mark",
        "moving",
        "numbers_attempts",
        "on_loan",
        "out",
        "pace_s",
        "recalled",
        "route",
        "sock",
        "stuck",
        "takes_about",
        "takes_values",
        "token",
        "travel_s",
        "values",
        "watches_out",
        "worker_id",
    )  # fmt: skip

    def __init__(
        self,
        lane: Lane,
        lease_id: str,
        worker_id: str,
        sock: Any,
        decoder: Any,
        now: float,
        travel_s: float = 0.0,
        token: Token | None = None,
        numbers_attempts: bool = False,
        answers_recalls: bool = False,
        takes_values: bool = False,
        takes_about: bool = False,
        keeps_objects: bool = False,
        *,
        route: WorkerRoute | None = None,
    ) -> None:
        self.lane = lane
        self.route = route  # where it is on another machine
        self.keeps_objects = keeps_objects  # whether it reads our large values by itself
        self.takes_values = takes_values  # whether it keeps values of tasks for those that come after
        self.values: LatestValues[int] = LatestValues()  # what it keeps, as far as we can tell: sizes by key
        self.token = token  # of its lease
        self.numbers_attempts = numbers_attempts  # whether the worker takes the number of an attempt
        self.answers_recalls = answers_recalls  # whether it gives back what it has not begun, and says so
        self.takes_about = takes_about  # whether it takes what is said about a task
        self.asked_at: float | None = None  # when it was asked for that, while it has not answered
        self.moving = False  # the host wants its worker to leave: like ``leaving``, and for good
        self.pace_s = 0.0  # what its calls took lately
        self.on_loan = False  # of CPUs that a waiting task lends: takes what that waits for, one by one
        self.leaving = False  # takes nothing more, and is given back once it has nothing
        self.travel_s = travel_s  # there and back, when it was connected
        self.fresh = False  # what comes next was sent to an idle worker, and travelled both ways meanwhile
        self.lease_id = lease_id
        self.worker_id = worker_id
        self.sock = sock
        self.fd = -1 if sock is None else sock.fileno()
        self.decoder = decoder
        self.calls: dict[int, TaskCall] = {}
        self.recalled: dict[int, TaskCall] = {}  # asked back and sent elsewhere; the worker answers for each
        self.load_s = 0.0
        self.mark = now  # when the first call began, as far as we can tell
        self.idle_since = now
        self.known: set[bytes] = set()
        self.out = bytearray()
        self.watches_out = False
        self.lost = False
        self.stuck = False  # its call runs longer than was expected: nothing goes behind it

    @property
    def head(self) -> TaskCall | None:
        """The call that is running."""
        return next(iter(self.calls.values()), None)

    def has_capacity(self, estimate_s: float) -> bool:
        """Whether one more call may be sent now."""
        if self.leaving or self.on_loan:
            return False
        if not self.calls:
            return True
        budget_s = BUDGET_S
        if self.route is not None and estimate_s != BUDGET_S:  # what was never seen may be anything
            budget_s += min(self.travel_s, TRAVEL_MAX_S)
        return (
            not self.stuck
            and self.load_s + estimate_s <= budget_s
            and len(self.calls) < MAX_DEPTH
            and len(self.out) < MAX_UNSENT_BYTES
        )

    def runs_s(self, now: float, since: float | None = None) -> float:
        """How long its first call has run as far as we can tell, or what was asked has gone unanswered *since*.

        What travels meanwhile does not count, nor a time in which nothing of it is heard.
        """
        begun = self.mark if since is None else since
        if self.route is None:
            return now - begun
        return 0.0 if self.route.is_away else max(0.0, now - max(begun, self.route.back_at) - self.travel_s)

    def took(self, call: TaskCall, estimate_s: float, now: float) -> None:
        """Note that a call was sent."""
        if not self.calls:
            self.mark = now
            self.fresh = True
        call.link = self
        call.estimate_s = estimate_s
        self.load_s += estimate_s
        self.calls[call.task_id] = call

    def ended(self, count: int, now: float) -> float:
        """How long each of *count* calls took that ended now. What is sent behind another travels while that runs."""
        elapsed_s = now - (self.mark if self.route is None else max(self.mark, self.route.back_at))
        if self.fresh:
            elapsed_s = max(0.0, elapsed_s - self.travel_s)
        self.mark = now
        self.fresh = self.stuck = False
        self.asked_at = None
        each_s = elapsed_s / count
        self.pace_s += (each_s - self.pace_s) * 0.2
        return each_s

    def may_take(self, call: TaskCall) -> bool:
        """Whether its lease is newer than any under which the call may have been begun."""
        return call.token is None or self.token is None or self.token > call.token

    def gave(self, task_id: int, now: float) -> TaskCall | None:
        """A call ended or came back; ``None`` for one that is not here."""
        call = self.calls.pop(task_id, None)
        if call is not None:
            call.link = None
            self.load_s -= call.estimate_s
            if not self.calls:
                self.load_s = 0.0
                self.idle_since = now
        return call


class Pace:
    """How long calls take, by kin: jumps up at once, comes down by a fifth per observation. Holds 4,096 kins."""

    def __init__(self) -> None:
        self._by_kin: dict[str, float] = {}

    def estimate_s(self, kin: str) -> float:
        """The expected duration; a whole budget for one never seen, so that it travels alone."""
        return self._by_kin.get(kin, BUDGET_S)

    def observe(self, kin: str, duration_s: float) -> None:
        """Note that a call took *took_s* seconds."""
        known = self._by_kin.get(kin)
        if known is None:
            if len(self._by_kin) >= MAX_PACES:
                self._by_kin.clear()
            self._by_kin[kin] = duration_s
        elif duration_s >= known:
            self._by_kin[kin] = duration_s
        else:
            self._by_kin[kin] = known + (duration_s - known) * 0.2


class Lane:
    """Calls of one shape, waiting, and the workers that serve them."""

    def __init__(self, shape: WorkerShape) -> None:
        self.shape = shape
        self.is_actors = any(name == MARK for name, _ in shape.env)  # of one call that lasts, on a worker of its own
        self.links: list[LeasedWorker] = []
        self.waiting = 0
        self.requests = 0  # leases asked for, not answered yet
        self.quiet_until = 0.0  # no further leases before
        self.failures = 0  # leases in a row that came to nothing
        self.mean_s: float | None = None
        self.balancing: str | None = None  # which worker gets a call that does not say; None: the least loaded
        self.waiting_since = 0.0
        self._skipped = 0
        self._older_grants = 0
        self.held: set[TaskCall] = set()  # lack an input: they are in no queue, and nobody works for them
        self._queues: dict[int, deque[TaskCall]] = {}
        self._router: LaneRouter | None = None
        self._again: deque[TaskCall] = deque()  # may have been begun: they need a newer lease than that

    def push(self, call: TaskCall, now: float, *, front: bool = False) -> None:
        """Let *call* wait; in *front* of its priority when it was sent before. One that lacks an input is held."""
        if call.missing:
            self.held.add(call)
            return
        if call.token is not None:
            if self.waiting == 0:
                self.waiting_since = now
            self._again.appendleft(call)
            self.waiting += 1
            return
        queue = self._queues.get(call.priority)
        if queue is None:
            queue = self._queues[call.priority] = deque()
            if len(self._queues) > 1:
                self._queues = dict(sorted(self._queues.items(), reverse=True))
        if self.waiting == 0:
            self.waiting_since = now
        if front:
            queue.appendleft(call)
        else:
            queue.append(call)
        self.waiting += 1

    def forget(self, call: TaskCall) -> None:
        """A waiting call became ``cancelled`` or ``done``; its place in the queue is skipped later."""
        if call in self.held:
            self.held.discard(call)
            return
        self.waiting -= 1
        self._skipped += 1
        if self._skipped > 1000 and self._skipped > self.waiting:
            self._skipped = 0
            for queue in (self._again, *self._queues.values()):
                alive = [kept for kept in queue if not (kept.cancelled or kept.done)]
                queue.clear()
                queue.extend(alive)

    def peek(self, link: LeasedWorker | None = None) -> TaskCall | None:
        """The call to send next, to *link* where one is given."""
        again = _first(self._again) if self._again else None
        if again is not None and link is not None and not link.may_take(again):
            again = None
        for priority, queue in self._queues.items():
            if again is not None and again.priority >= priority:
                return again
            fresh = _first(queue)
            if fresh is not None:
                return fresh
        return again

    def pop(self, link: LeasedWorker | None = None) -> TaskCall | None:
        """Take the call to send next out of the queue."""
        call = self.peek(link)
        if call is not None:
            (self._again if call.token is not None else self._queues[call.priority]).popleft()
            self.waiting -= 1
        return call

    @property
    def unfinished(self) -> int:
        """The number of its calls, waiting and running."""
        return self.waiting + len(self.held) + sum(len(link.calls) for link in self.links)

    def queued(self) -> list[TaskCall]:
        """All waiting calls, and those that are held."""
        queued = itertools.chain(self._again, *self._queues.values(), self.held)
        return [call for call in queued if not (call.cancelled or call.done)]

    def drain(self) -> list[TaskCall]:
        """Take them all out."""
        calls = self.queued()
        self.held.clear()
        self._queues.clear()
        self._again.clear()
        self.waiting = 0
        return calls

    def pick(self, estimate_s: float, balancing: str | None = None, key: str = "") -> LeasedWorker | None:
        """The worker with room that *balancing*, or else the lane's policy, chooses for a call with that *key*."""
        policy = balancing or self.balancing
        if policy is not None and policy not in LEAST_LOADED:
            if self._router is None:
                self._router = LaneRouter()
            return self._router.choose(self.links, estimate_s, policy, key)
        best: LeasedWorker | None = None
        for link in self.links:
            if link.has_capacity(estimate_s) and (best is None or link.load_s < best.load_s):
                best = link
                if not link.calls:
                    break
        return best

    def observe(self, duration_s: float) -> None:
        """Note how long calls of this lane took lately."""
        self.mean_s = duration_s if self.mean_s is None else self.mean_s + (duration_s - self.mean_s) * 0.2

    def stalled(self, now: float) -> int:
        """The number of calls that sit behind one that runs longer than expected."""
        return sum(len(link.calls) - 1 for link in self.links if len(link.calls) > 1 and link.runs_s(now) > STALL_S)

    def _idle(self) -> list[LeasedWorker]:
        return [link for link in self.links if not (link.calls or link.leaving or link.on_loan)]

    def victims(self, now: float) -> list[LeasedWorker]:
        """The workers to ask for what they have not begun: it sits behind a long call while another has nothing to do.

        (Blumofe, Leiserson: Scheduling Multithreaded Computations by Work Stealing, 1999: who has nothing to do takes.)
        """
        stuck = [
            link
            for link in self.links
            if len(link.calls) > 1 and link.runs_s(now) > STALL_S and link.answers_recalls and link.asked_at is None
        ]
        return stuck if stuck and self._idle() else []

    def recall(self, now: float) -> list[tuple[LeasedWorker, TaskCall]]:
        """The calls to send elsewhere although their worker does not say whether it has begun them.

        It was started by an earlier version, or has not answered for ``UNANSWERED_S``: its call keeps all of Python. To
        a worker of a newer lease, because the call in front may end before the worker reads that we do not want them
        any more, and then they have begun: whoever they write to can tell the two runs apart.
        """
        idle = self._idle()
        if not idle:
            return []
        newest = _newest(idle)
        return [
            (link, call)
            for link in self.links
            if len(link.calls) > 1 and link.runs_s(now) > STALL_S and _is_older(link.token, newest)
            if not link.answers_recalls
            or (link.asked_at is not None and link.runs_s(now, link.asked_at) > UNANSWERED_S)
            for call in itertools.islice(link.calls.values(), 1, None)
            if not call.cancelled
        ]

    def lacks_newer(self) -> bool:
        """Whether a call waits that may have been begun under a newer lease than any worker here has."""
        again = _first(self._again) if self._again else None
        return again is not None and not any(link.may_take(again) for link in self._regular() if not link.leaving)

    def _regular(self) -> list[LeasedWorker]:
        return [link for link in self.links if not link.on_loan]

    def take(self, call: TaskCall) -> None:
        """Take this very call out of its queue."""
        (self._again if call.token is not None else self._queues[call.priority]).remove(call)
        self.waiting -= 1

    def replaceable(self, now: float) -> LeasedWorker | None:
        """The worker to give back for one of a newer lease; ``None`` while none is needed, or one may come besides."""
        if now >= self.quiet_until or self.requests or any(link.leaving for link in self.links):
            return None
        idle = [link for link in self._regular() if not link.calls]
        newest = _newest(idle)
        stalled = [link for link in self.links if len(link.calls) > 1 and link.runs_s(now) > STALL_S]
        if idle and (self.lacks_newer() or not all(_is_older(link.token, newest) for link in stalled)):
            return min(idle, key=lambda link: link.token or (0, 0))
        return min(self._regular(), key=lambda link: link.load_s, default=None) if self.lacks_newer() else None

    def granted(self, token: Token | None) -> list[TaskCall]:
        """Note a lease with *token*; gives the calls for which none will ever be new enough."""
        for link in self.links:
            link.leaving = link.moving
        again = _first(self._again) if self._again else None
        if again is None or _is_older(again.token, token):
            self._older_grants = 0
            return []
        self._older_grants += 1
        if self._older_grants < MAX_OLDER_GRANTS:
            return []
        self._older_grants = 0
        hopeless = [call for call in self._again if not (call.cancelled or call.done)]
        self._again.clear()
        self.waiting -= len(hopeless)
        return hopeless

    def wants_lease(self, now: float) -> bool:
        """Whether to ask for one more worker: the first at once, others while the queue would last."""
        stalled = self.stalled(now)
        needed = self.waiting + stalled
        if needed <= self.requests or self.requests >= MAX_LEASE_REQUESTS:
            return False
        if not self.links and not self.requests:
            return True
        if now < self.quiet_until:
            return False
        if stalled or self.lacks_newer():
            return True
        if self.mean_s is None or now - self.waiting_since > 1.0:
            return now - self.waiting_since > STALL_S
        return self.waiting * self.mean_s / max(1, len(self.links)) > GROW_BACKLOG_S


def add_lane(lanes: dict[WorkerShape, Lane], shape: WorkerShape) -> Lane:
    """A new lane among *lanes*. Raises QueueFull."""
    lane = Lane(shape)
    if not lane.is_actors and sum(not other.is_actors for other in lanes.values()) >= MAX_LANES:
        raise QueueFull(
            f"{MAX_LANES} different sets of resources are in use at once", hint="ask for fewer distinct shapes"
        )
    lanes[shape] = lane
    return lane


def forget_unused(lanes: dict[WorkerShape, Lane]) -> None:
    """Forget lanes without calls and workers: those of actors, and where there are many all of them."""
    crowded = len(lanes) > MAX_LANES // 2
    unused = [lane for lane in lanes.values() if not (lane.links or lane.requests or lane.waiting or lane.held)]
    for lane in unused:
        if crowded or lane.is_actors:
            del lanes[lane.shape]


def _first(queue: deque[TaskCall]) -> TaskCall | None:
    """The first call that is still wanted; others are dropped on the way."""
    while queue:
        if not (queue[0].cancelled or queue[0].done):
            return queue[0]
        queue.popleft()
    return None


def _newest(links: list[LeasedWorker]) -> Token | None:
    return max((link.token for link in links if link.token is not None), default=None)


def _is_older(token: Token | None, other: Token | None) -> bool:
    """Whether *token* is below *other*; as far as can be told, where an older host names none."""
    return token is None or other is None or token < other


class LaneLook(NamedTuple):
    """What was found when a lane was looked over."""

    busy: bool
    """Whether it has to be looked over again soon."""
    overdue: list[tuple[LeasedWorker, TaskCall]]
    """Calls past their limit of time, whose workers did not stop them."""
    to_leave: list[LeasedWorker]
    """Workers to be handed back, which have nothing any more."""


def look_over(lane: Lane, now: float) -> LaneLook:
    """Judge the workers of *lane*: which are stuck, which have to leave, which call is past its limit."""
    outdated = lane.replaceable(now)
    if outdated is not None:
        outdated.leaving = True
    look = LaneLook(any(link.leaving or len(link.calls) > 1 for link in lane.links), [], [])
    busy = look.busy
    for link in lane.links:
        head = link.head
        if head is None:
            if link.leaving:
                look.to_leave.append(link)
            continue
        link.stuck = link.runs_s(now) > STALL_S
        if head.timeout_s is not None:
            busy = True
            if link.runs_s(now) > head.timeout_s + TIMEOUT_GRACE_S:
                look.overdue.append((link, head))
    return look._replace(busy=busy)
