"""Sends calls to workers, from a submit, from the queues of lanes, or when their inputs have come.

All of it with the dispatcher's lock held.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from actorgrid.errors import ActorGridError
from actorgrid.objects.stored import bring_along
from actorgrid.task_context import SESSION_RETRIES
from actorgrid.transports.task_frames import (
    TaskAbout,
    decode_failure_body,
    encode_function,
    encode_task,
    encode_value,
)

from .call_errors import takes_no_futures
from .dependencies import followers, lacking_values, nearest
from .lanes import Lane, LeasedWorker, Pace, TaskCall
from .pickling import MAX_PAYLOAD_BYTES
from .worker_sockets import WorkerSockets

_USUAL = TaskAbout()


class Sender:
    """Puts calls on the wire. *refuse* is called with one that cannot be sent to its worker."""

    def __init__(
        self, sockets: WorkerSockets[LeasedWorker], pace: Pace, refuse: Callable[[TaskCall, ActorGridError], None]
    ) -> None:
        self._sockets = sockets
        self._pace = pace
        self._refuse = refuse

    def choose(self, call: TaskCall, estimate_s: float) -> LeasedWorker | None:
        """The worker for a call whose inputs are there, unless it has to queue."""
        if call.lane.waiting or call.token is not None:
            return None
        near = nearest(call, estimate_s) if call.choice[0] is None else None
        return near or call.lane.pick(estimate_s, *call.choice)

    def release(self, calls: list[TaskCall]) -> None:
        """Send calls whose inputs have come. What has to queue goes before later ones: it was asked for earlier, and
        the sooner it is done, the sooner its inputs are forgotten."""
        now = time.monotonic()
        links: dict[int, LeasedWorker] = {}
        rest: list[TaskCall] = []
        for call in calls:
            estimate_s = self._pace.estimate_s(call.code.kin)
            link = self.choose(call, estimate_s)
            if link is None:
                rest.append(call)
            else:
                self.put(link, call, estimate_s, now)
                links[link.fd] = link
        for call in reversed(rest):
            call.lane.push(call, now, front=True)
        for link in links.values():
            self._sockets.flush(link)
        self._sockets.tick_soon()

    def put(self, link: LeasedWorker, call: TaskCall, estimate_s: float, now: float) -> None:
        """Send a call, and behind it those that wait for it alone."""
        self._send(link, call, estimate_s, now)
        if call.future.use is not None:
            for follower, expected_s in followers(call, link, self._pace):
                self._send(link, follower, expected_s, now)

    def _send(self, link: LeasedWorker, call: TaskCall, estimate_s: float, now: float) -> None:
        if call.inputs and not link.takes_values:
            self._refuse(call, takes_no_futures(link))
            return
        code = call.code
        try:
            out, arguments = self._needed(link, call)
        except ActorGridError as error:
            self._refuse(call, error)
            return
        link.out += out
        link.known.add(code.fn_id)
        link.took(call, estimate_s, now)
        number = call.attempt_number if link.numbers_attempts else 1
        inputs = tuple(used.key for used in call.inputs)
        about = None
        if link.takes_about and (call.about is not None or call.losses_left != SESSION_RETRIES):
            about = (call.about or _USUAL)._replace(retries_left=call.losses_left)
        link.out += encode_task(call.task_id, code.fn_id, arguments, call.timeout_s, number, inputs, about)

    def _needed(self, link: LeasedWorker, call: TaskCall) -> tuple[bytearray, bytes]:
        """The frames that the worker needs ahead of the call, and the call's arguments, in a form that it can load.

        What lies in an object store is brought along to a worker that is at none.
        """
        out = bytearray()
        lacking = lacking_values(call, link) if call.inputs else []
        code, arguments, bodies = call.code.code, call.args, [used.body for used in lacking]
        if not link.keeps_objects:
            code = bring_along(code, call.code.held, MAX_PAYLOAD_BYTES) if call.code.fn_id not in link.known else b""
            arguments = bring_along(arguments, call.held, MAX_PAYLOAD_BYTES)
            bodies = [bring_along(used.body, used.held, MAX_PAYLOAD_BYTES) for used in lacking]
        if call.code.fn_id not in link.known:
            out += encode_function(call.code.fn_id, code)
        for used, body in zip(lacking, bodies, strict=True):
            out += encode_value(used.key, body)
            link.values.add(used.key, len(body), len(body))
        return out, arguments

    def refill(self, link: LeasedWorker) -> None:
        """Send what waits in the lane, as long as the worker has room."""
        lane = link.lane
        now = time.monotonic()
        while lane.waiting and not link.lost:
            call = lane.peek(link)
            if call is None:
                return
            estimate_s = self._pace.estimate_s(call.code.kin)
            if not link.has_capacity(estimate_s):
                return
            lane.pop(link)
            self.put(link, call, estimate_s, now)

    def supply(self, lane: Lane) -> None:
        """Send what waits in *lane* to all of its workers that have room."""
        for link in lane.links:
            self.refill(link)
            self._sockets.flush(link)


def must_resend(link: LeasedWorker, call: TaskCall, body: bytes, now: float) -> bool:
    """Whether a failure only says that the worker has forgotten the function, or an input."""
    if call.cancelled:
        return False
    error, _ = decode_failure_body(body)
    if error.code != "UnknownKey" or not (error.details.get("fn_id") or error.details.get("value_keys")):
        return False
    if error.details.get("fn_id"):
        link.known.discard(call.code.fn_id)
    else:
        for used in call.inputs:
            link.values.discard(used.key)
    call.lane.push(call, now, front=True)
    return True
