"""One shard of a set of light processes, as the detached actor that it is: an attempt under a shim, on any host.

The shard has a thread; the actor's methods ask it. Another thread finds the ways to the other shards: each is an actor
with a name, whose job the ledger knows.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from actorgrid import user_actor_context
from actorgrid.errors import ActorGridError, BadRequest, NoSuchActor, OutsideTask
from actorgrid.fencing import FencingToken
from actorgrid.hotpath.light import Pid
from actorgrid.job_outcome import FINAL_STATES
from actorgrid.supervisors.exits import ExitReason
from actorgrid.supervisors.process.inspecting import ProcessInfo, SortKey, shard_figures, top
from actorgrid.supervisors.process.releases import ReleaseReport
from actorgrid.supervisors.process.shard_links import ShardIdentity, slot_of
from actorgrid.supervisors.process.shard_loop import ShardLoop, ShardRoute
from actorgrid.task_context import current_task
from actorgrid.transports.user_actor_frames import ACTOR_HEX, FarCaller, encode_far_caller
from actorgrid.user_actor_context import ActorReference

from .actor_doors import actor_doors
from .actor_jobs import actor_jobs, where_is
from .actor_names import find
from .actor_places import local_path, relay_to
from .shard_versions import ShardVersion, deployed_version
from .task import default_client

FIND_S = 0.25
"""How often a way is looked for, while one is wanted."""
FIND_MOST_S = 2.0
EXIT_CODE = 70
DEPLOYED_WAIT_S = 10.0


def shard_name(group: str, slot: int) -> str:
    """The name of the actor that a shard is."""
    return f"shards/{group}/{slot}"


def links_id(actor_id: str) -> str:
    """The name of the socket to which other shards come, beside the actor's."""
    return hashlib.blake2b(f"{actor_id}/links".encode(), digest_size=ACTOR_HEX // 2).hexdigest()


class LightShard:
    """The actor. *every_s*: how often the states of its processes are kept, if at all."""

    def __init__(
        self,
        group: str,
        slot: int,
        count: int,
        secret: bytes,
        patience_s: float,
        every_s: float | None,
        root: Any,
        args: tuple[Any, ...],
    ) -> None:
        held = user_actor_context.here
        if held is None:
            raise OutsideTask("a shard of a set is an actor", hint="client.start_shards(...)")
        self._group, self._slot, self._count = group, slot, count
        self._root, self._args = root, args
        self._every_s = every_s
        path = os.path.join(os.path.dirname(held.path), links_id(held.reference.actor_id))
        me = ShardIdentity(group, slot, count, current_task().token, held.host_id)
        self._loop = ShardLoop(me, secret, path, patience_s, _end)
        self._shard = self._loop.shard
        self._reference = held.reference
        self._peers: dict[int, ActorReference] = {}
        self._loop.start()
        if every_s is None or current_task().restored_from is None:
            self._begin()  # otherwise load() comes next, and what is begun finds its state

    def _begin(self) -> None:
        """Begin the root, with the code that was deployed last."""
        version = self._deployed()
        if version is not None:
            try:
                self._shard.post_action(lambda: self._release(version)).result()
            except ActorGridError as error:
                print(f"version {version.number} is not begun with: {error}", file=sys.stderr, flush=True)
        if self._root is not None:
            self._loop.begin_root(self._root, self._args)
        threading.Thread(target=self._find_ways, name="actorgrid-shard-ways", daemon=True).start()

    # -- what is asked

    async def ask(self, to: Any, request: Any, timeout_s: float | None) -> Any:
        """Call a process."""
        self._check_incarnation(to)
        return await asyncio.wrap_future(self._shard.post_call(to, request, timeout_s))

    async def deliver(self, to: Any, message: Any, how: str) -> bool:
        """Send a process a message, a ``cast``, or an ``exit``; ``False``: it is refused, or nobody is there."""
        self._check_incarnation(to)
        shard = self._shard

        def act() -> bool:
            if how == "exit":
                shard.exit(to, message)
                return True
            return shard.cast(to, message) if how == "cast" else shard.send(to, message)

        return await asyncio.wrap_future(shard.post_action(act))

    def _check_incarnation(self, to: Any) -> None:
        """Raise NoSuchActor, with *to* as what was asked for, for a process of an incarnation before this one."""
        if isinstance(to, Pid) and slot_of(to) == self._slot and to.address != self._shard.core.address:
            raise NoSuchActor(f"{to} ended with its shard, which was begun again", asked=str(to))

    async def begin(self, kind: Any, args: tuple[Any, ...], name: str | None, timeout_s: float) -> Any:
        """Begin a process here; its Pid."""
        return await asyncio.wrap_future(self._loop.spawned(kind, args, name, timeout_s))

    async def where(self, name: str) -> Any:
        """Who has the name, in any shard."""
        return await asyncio.wrap_future(self._shard.post_action(lambda: self._shard.whereis(name)))

    async def group_members(self, group: str) -> Any:
        """Who is in the group, in all shards that are linked."""
        return await asyncio.wrap_future(self._shard.post_action(lambda: self._shard.members(group)))

    async def busiest(self, by: SortKey, count: int) -> list[ProcessInfo]:
        """The processes here with most of one thing."""
        return await asyncio.wrap_future(self._shard.post_action(lambda: top(self._shard, by, count)))

    async def layout(self) -> dict[str, Any]:
        """Which shard this is, and how it stands."""

        def look() -> dict[str, Any]:
            links, names = self._shard.links, self._shard.global_names
            return {
                "group": self._group,
                "slot": self._slot,
                "count": self._count,
                "host_id": self._shard.me.host_id,
                "token": str(self._shard.me.token),
                "linked": [n for n in range(self._count) if links.address_of(n) is not None],
                "grants_names": names.is_ready,
                "names": len(names.held()),
                "figures": shard_figures(self._shard),
                "pid": os.getpid(),
            }

        return await asyncio.wrap_future(self._shard.post_action(look))

    async def release(self, version: ShardVersion) -> ReleaseReport:
        """Begin to change to a version of a module."""
        return await asyncio.wrap_future(self._shard.post_action(lambda: self._release(version)))

    async def settle_release(self, number: int, share: float | None, why: str = "") -> ReleaseReport:
        """Change more of the processes to a version; without a share, give them the one of before."""
        releases = self._loop.releases

        def act() -> ReleaseReport:
            return releases.take_back(number, why) if share is None else releases.widen(number, share)

        return await asyncio.wrap_future(self._shard.post_action(act))

    async def release_report(self, number: int) -> ReleaseReport:
        """How a version stands here."""
        return await asyncio.wrap_future(self._shard.post_action(lambda: self._loop.releases.report(number)))

    def _release(self, version: ShardVersion) -> ReleaseReport:
        return self._loop.releases.begin(
            *(version.number, version.name, version.source, version.share),
            *(version.failures_max, version.crashes_max),
            more=_classes_beside(self._root),
        )

    async def touched(self) -> None:
        """Nothing: what the shard asks of its actor, so that its state is kept though only other shards call it."""

    # -- state

    def save(self) -> dict[str, Any]:
        """What its processes with names want kept."""
        return self._shard.post_action(self._shard.saved_states).result()

    def load(self, state: dict[str, Any]) -> None:
        """What the incarnation before kept."""
        self._shard.post_action(lambda: self._shard.kept_states.update(state)).result()
        self._begin()

    # -- ways to the others

    def _find_ways(self) -> None:
        touch_at, handled, pause_s = time.monotonic(), -1.0, FIND_S
        while not self._shard.closed:
            to_dial, in_question = self._loop.wanted()
            if to_dial or in_question:
                for slot in sorted({*to_dial, *in_question}):
                    # No door answers just now, or the others are not made yet: it is asked again.
                    with suppress(ActorGridError, OSError):
                        self._find_way(slot, slot in to_dial)
                pause_s = min(FIND_MOST_S, pause_s * 1.5)
            else:
                pause_s = FIND_S
            if self._every_s is not None and time.monotonic() - touch_at >= self._every_s / 2:
                touch_at = time.monotonic()
                now = shard_figures(self._shard).get("process_messages_total", handled + 1)
                if now != handled:
                    handled = now
                    with suppress(ActorGridError):
                        self._touch()
            time.sleep(pause_s)

    def _touch(self) -> None:
        from .actor_handles import ActorHandle

        ActorHandle(self._reference).touched().result(30)

    def _deployed(self) -> ShardVersion | None:
        """The version that this set has been given to all its processes, if any."""
        if current_task().attempt_number == 1:
            return None
        until = time.monotonic() + DEPLOYED_WAIT_S
        while True:
            try:
                return deployed_version(default_client(), self._group)
            except ActorGridError as error:
                if time.monotonic() > until:
                    print(f"nobody says which version was deployed: {error}", file=sys.stderr, flush=True)
                    return None
            time.sleep(FIND_S)

    def _find_absent(self, slot: int, reference: ActorReference) -> None:
        """Ask again, now that the copy that answers is known to be as late as our beginning."""
        job = actor_jobs.job(reference)
        if job["state"] == "queued" or job["state"] in FINAL_STATES:
            self._loop.absent(slot)

    def _find_way(self, slot: int, dial: bool) -> None:
        client = default_client()
        reference = self._peers.get(slot)
        if reference is None:
            reference = self._peers[slot] = find(client, shard_name(self._group, slot))._reference
        job = actor_jobs.job(reference)
        at, death = where_is(reference, job)
        if death is not None or job["state"] == "queued" or job["state"] in FINAL_STATES:
            # Only of a copy of the ledger that has our own beginning: who held a name of an incarnation before us
            # had begun before that, so this copy knows of it.
            if has_begun(current_task().token, actor_jobs.job(self._reference)):
                self._find_absent(slot, reference)
        elif at and dial:
            self._loop.connect(slot, _route_to(reference, at))


def has_begun(token: FencingToken, job: Mapping[str, Any]) -> bool:
    """Whether a copy of the ledger, by what it says of a job, has the attempt of that token, or a later one."""
    return any(tuple(attempt["token"]) >= tuple(token) for attempt in job.get("attempts", ()))


def _route_to(reference: ActorReference, at: str) -> ShardRoute:
    actor_id = links_id(reference.actor_id)
    here = actor_doors.whereabouts_for(reference, at)
    relay = relay_to(at, here)
    if not relay:
        return ShardRoute(os.path.join(os.path.dirname(local_path(reference, at, here)), actor_id))
    folder = os.path.basename(os.path.dirname(reference.path))
    return ShardRoute(relay, encode_far_caller(FarCaller(at, folder, actor_id, os.urandom(16).hex(), False)))


def _classes_beside(root: Any) -> tuple[type, ...]:
    """The classes that the code of a shard's root names: its module's, or, of code that came along, what it uses."""
    module = sys.modules.get(getattr(root, "__module__", ""))
    found: dict[str, Any] = dict(vars(module)) if module is not None else {}
    for function in (root, *vars(root).values()) if isinstance(root, type) else (root,):
        found.update(getattr(function, "__globals__", {}))
    return tuple(each for each in found.values() if isinstance(each, type))


def _end(reason: ExitReason) -> None:
    """End the attempt, which is begun again if it may be: the shard's root has ended, or the shard hangs."""
    what = "the shard hangs" if reason.kind == "hung" else "the root of the shard has ended"
    print(f"{what}: {reason}\n{reason.traceback}".rstrip(), file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(EXIT_CODE)


def check_group(group: object) -> str:
    """The name of a set. Raises BadRequest."""
    if not isinstance(group, str) or not 0 < len(group) <= 60 or not group.isprintable() or "/" in group:
        raise BadRequest("not the name of a set of shards", asked=repr(group)[:100], hint="1 to 60 characters, no /")
    return group


def nobody_has(name: str, group: str) -> NoSuchActor:
    """The error for a name of the set that nobody has."""
    return NoSuchActor(f"no process of {group!r} has the name {name!r}", asked=name, hint="it ended, or is not up yet")
