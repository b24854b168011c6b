"""Sets of light processes over hosts: ``client.start_shards``, ``client.shards``, ``client.whereis``."""

from __future__ import annotations

import itertools
import queue
import secrets
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from actorgrid.errors import ActorDied, ActorGridError, BadRequest, CallTimeout, NoSuchActor
from actorgrid.hotpath.light import Pid
from actorgrid.supervisors.process.inspecting import ProcessInfo, SortKey
from actorgrid.supervisors.process.releases import ReleaseReport
from actorgrid.supervisors.process.shard_links import SLOTS_MAX, slot_of

from .actor_handles import ActorHandle
from .actor_names import find
from .light_shard import LightShard, check_group, nobody_has, shard_name
from .shard_versions import ShardVersion, deploy_lock, note_deployed

if TYPE_CHECKING:
    from .actor_links import ActorFuture
    from .client import Client

CONCURRENCY = 1000
"""Requests of clients that one shard has open; more wait."""
MARGIN_S = 5.0
ASK_S = 5.0
RELEASE_S = 60.0
"""For all processes of a shard to change."""
LOOK_S = 0.1
PATIENCE_MIN_S, PATIENCE_MAX_S = 1.0, 600.0
FOUND_MAX = 10_000
RESTARTS = 100


@dataclass(frozen=True, slots=True)
class Deployment:
    """What became of a version."""

    version: ShardVersion
    stays: bool
    """``False``: it was taken back, in all shards."""
    reports: tuple[ReleaseReport, ...]
    why: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProcessRef:
    """A light process of a set, as a client sees it: what ``client.whereis`` finds."""

    shards: LightShards
    pid: Pid

    def call(self, request: Any, timeout_s: float = 5.0) -> Any:
        """Ask it. Raises as ``LightShards.call``."""
        return self.shards.call(self.pid, request, timeout_s)

    def cast(self, message: Any) -> bool:
        """Send it a message for ``handle_cast``."""
        return self.shards.cast(self.pid, message)

    def send(self, message: Any) -> bool:
        """Send it a message."""
        return self.shards.send(self.pid, message)


class LightShards:
    """A set of shards, from outside; for any thread. Its processes are reached by Pid or by their names of the set.

    Made by ``client.start_shards`` and ``client.shards``. What runs in a shard (a process, and code of its actor) sees
    the same processes by ``self.call`` and so on.
    """

    def __init__(self, client: Client, group: str, count: int, handles: dict[int, ActorHandle[LightShard]]) -> None:
        self.group = group
        self.count = count
        self._client = client
        self._handles = handles
        self._found: dict[str, Pid] = {}
        self._next = itertools.cycle(range(count))

    def start(
        self, kind: Any, *args: Any, name: str | None = None, shard: int | None = None, timeout_s: float = 60.0
    ) -> Pid:
        """Begin a process, in the shards in turn unless said; its Pid when its ``init`` has ended.

        *name*: one of the set. Nobody begins it again when its shard is lost: children of the root's are.
        Raises what ``init`` raised, StartFailed, NameTaken, CallTimeout, ActorDied.
        """
        slot = next(self._next) if shard is None else shard
        pid: Pid = self._result(self._shard(slot).begin(kind, args, name, timeout_s), timeout_s, f"shard {slot}")
        return pid

    def call(self, to: Pid | str, request: Any, timeout_s: float = 5.0) -> Any:
        """Ask a process, and wait for its answer.

        Raises what it raised, CallTimeout, ActorDown, NoSuchActor, MailboxFull; ActorDied when its shard is no more.
        """
        return self._at(to, timeout_s, lambda shard, pid: shard.ask(pid, request, timeout_s))

    def cast(self, to: Pid | str, message: Any, timeout_s: float = 5.0) -> bool:
        """Send a message for ``handle_cast``; ``False``: it is refused, or nobody is there."""
        return self._deliver(to, message, "cast", timeout_s)

    def send(self, to: Pid | str, message: Any, timeout_s: float = 5.0) -> bool:
        """Send a message; ``False``: it is refused, or nobody is there."""
        return self._deliver(to, message, "send", timeout_s)

    def exit(self, to: Pid | str, reason: Any, timeout_s: float = 5.0) -> None:
        """Ask a process to end."""
        self._deliver(to, reason, "exit", timeout_s)

    def whereis(self, name: str, timeout_s: float = 5.0) -> ProcessRef | None:
        """Who has the name of the set."""
        pid = self._first(lambda shard: shard.where(name), timeout_s)
        return None if pid is None else ProcessRef(self, pid)

    def wait_for(self, name: str, timeout_s: float = 60.0) -> ProcessRef:
        """Who has the name of the set, once somebody has. Raises NoSuchActor when nobody has in time."""
        until = time.monotonic() + timeout_s
        while True:
            left_s = until - time.monotonic()
            try:
                found = self.whereis(name, min(max(0.1, left_s), ASK_S))
            except ActorGridError:
                found = None
                if left_s <= 0:
                    raise
            if found is not None:
                return found
            if left_s <= 0:
                raise nobody_has(name, self.group)
            time.sleep(LOOK_S)

    def members(self, group: str, timeout_s: float = 5.0) -> list[Pid]:
        """Who is in the group, as the first shard that answers sees it."""
        return list(self._first(lambda shard: shard.group_members(group), timeout_s) or ())

    def top(self, by: SortKey = "reductions", count: int = 10, timeout_s: float = 5.0) -> list[ProcessInfo]:
        """The processes with most of one thing, of all shards that answer in time."""
        keys = {"mailbox": "mailbox", "reductions": "reductions", "memory": "memory_bytes"}
        if by not in keys:
            raise BadRequest("by what?", asked=str(by)[:40], hint=", ".join(keys))
        found = [info for part in self._all(lambda shard: shard.busiest(by, count), timeout_s) for info in part]
        return sorted(found, key=lambda info: getattr(info, keys[by]), reverse=True)[:count]

    def layout(self, timeout_s: float = 5.0) -> list[dict[str, Any]]:
        """How each shard stands that answers in time: ``slot``, ``host_id``, ``token``, ``linked``, ``names``, ..."""
        return sorted(self._all(lambda shard: shard.layout(), timeout_s), key=lambda each: int(each["slot"]))

    def deploy(
        self, source: str, name: str, canary: float = 1.0, watch_s: float = 5.0, crashes_max: int = 3
    ) -> Deployment:
        """Give the processes the classes of a module's new source, first *canary* of them, in every shard.

        Taken back in all shards when one change fails, or when more than *crashes_max* of a shard's changed processes
        crash within *watch_s*. With a canary below 1, ``widen_deploy`` or ``take_back_deploy`` follows; at 1, shards
        that are begun again begin with it. Raises LockHeld, ActorDied, BadRequest, WrongState, CallTimeout.
        """
        if not isinstance(canary, (int, float)) or not 0 < canary <= 1:
            raise BadRequest("a canary is a share of the processes", asked=repr(canary)[:40], hint="0.1, or 1")
        with self._client.lock(deploy_lock(self.group), wait_s=0) as lock:
            version = ShardVersion(int(lock.token), name, source, float(canary), 0, crashes_max)
            return self._settled(version, lambda shard: shard.release(version), watch_s)

    def widen_deploy(self, version: ShardVersion, canary: float = 1.0, watch_s: float = 5.0) -> Deployment:
        """Give more of the processes a version that some have. Raises as ``deploy``."""
        with self._client.lock(deploy_lock(self.group), wait_s=0):
            wider = replace(version, share=float(canary))
            return self._settled(wider, lambda shard: shard.settle_release(version.number, wider.share), watch_s)

    def take_back_deploy(self, version: ShardVersion, why: str = "somebody took it back") -> None:
        """Give all processes the code of before, with the state of now.

        A shard that does not have the version, or is no more, has the code of before. Raises what another shard raised.
        """
        failure: ActorGridError | None = None
        for slot in range(self.count):
            try:
                self._result(self._shard(slot).settle_release(version.number, None, why), RELEASE_S, f"shard {slot}")
            except (ActorDied, BadRequest):
                continue
            except ActorGridError as error:  # the others are told all the same
                failure = error
        if failure is not None:
            raise failure

    def _settled(
        self, version: ShardVersion, ask: Callable[[ActorHandle[LightShard]], ActorFuture[Any]], watch_s: float
    ) -> Deployment:
        try:
            for slot in range(self.count):
                self._result(ask(self._shard(slot)), RELEASE_S, f"shard {slot}")
            until = time.monotonic() + watch_s
            give_up = time.monotonic() + RELEASE_S
            while True:
                asked = [self._shard(slot).release_report(version.number) for slot in range(self.count)]
                reports: list[ReleaseReport] = [
                    self._result(each, RELEASE_S, f"shard {slot}") for slot, each in enumerate(asked)
                ]
                why = tuple(f"shard {slot}: {each}" for slot, one in enumerate(reports) for each in one.why)
                if any(one.state == "taken back" for one in reports):
                    self.take_back_deploy(version, "it was taken back in another shard")
                    return Deployment(version, False, tuple(reports), why)
                changing = any(one.state == "changing" for one in reports)
                if not changing and time.monotonic() >= until:
                    break
                if changing and time.monotonic() >= give_up:
                    raise CallTimeout("processes do not change", asked=f"within {RELEASE_S:g} s", hint="they are busy")
                time.sleep(LOOK_S)
        except ActorGridError as error:
            with suppress(ActorGridError):
                self.take_back_deploy(version, f"it did not come to all shards: {error.message}")
            raise
        if version.share == 1:
            note_deployed(self._client, self.group, version)
        return Deployment(version, True, tuple(reports), ())

    def stop(self) -> None:
        """End all shards and what is in them, in order."""
        for slot in range(self.count):
            self._shard(slot).stop()

    # -- inside

    def _shard(self, slot: int) -> ActorHandle[LightShard]:
        if not 0 <= slot < self.count:
            raise BadRequest("this set has no such shard", asked=str(slot), found=f"0 to {self.count - 1}")
        handle = self._handles.get(slot)
        if handle is None:
            handle = self._handles[slot] = find(self._client, shard_name(self.group, slot))
        return handle

    def _deliver(self, to: Pid | str, message: Any, how: str, timeout_s: float) -> bool:
        try:
            return bool(self._at(to, timeout_s, lambda shard, pid: shard.deliver(pid, message, how)))
        except NoSuchActor as error:
            if isinstance(to, Pid) and error.asked == str(to):
                return False
            raise

    def _at(
        self, to: Pid | str, timeout_s: float, ask: Callable[[ActorHandle[LightShard], Pid], ActorFuture[Any]]
    ) -> Any:
        pid = to if isinstance(to, Pid) else self._found.get(to)
        known = pid is not None
        if pid is None:
            found = self.whereis(str(to), timeout_s)
            if found is None:
                raise nobody_has(str(to), self.group)
            pid = found.pid
            while len(self._found) >= FOUND_MAX:
                self._found.pop(next(iter(self._found)), None)
            self._found[str(to)] = pid
        slot = slot_of(pid)
        if slot >= self.count:
            raise NoSuchActor("this is no process of this set", asked=str(pid), found=self.group)
        try:
            return self._result(ask(self._shard(slot), pid), timeout_s, pid)
        except ActorGridError as error:
            if isinstance(to, Pid):
                raise
            self._found.pop(to, None)  # it may be another's by now
            if known and isinstance(error, NoSuchActor) and error.asked == str(pid):
                return self._at(to, timeout_s, ask)  # it came to nobody, so it may be asked again
            raise

    def _result(self, future: ActorFuture[Any], timeout_s: float, who: object) -> Any:
        try:
            return future.result(timeout_s + MARGIN_S)
        except (TimeoutError, CancelledError) as error:
            if isinstance(error, ActorGridError):
                raise
            future.cancel()
            raise CallTimeout(
                f"{who} does not answer",
                asked=f"within {timeout_s:g} s",
                hint="its host may be lost: try again",
            ) from error

    def _ask_all(self, ask: Callable[[ActorHandle[LightShard]], ActorFuture[Any]]) -> queue.SimpleQueue[Any]:
        done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for slot in range(self.count):
            try:
                ask(self._shard(slot)).add_done_callback(done.put)
            except ActorGridError as error:
                done.put(error)
        return done

    def _all(self, ask: Callable[[ActorHandle[LightShard]], ActorFuture[Any]], timeout_s: float) -> list[Any]:
        """What the shards say that answer in time."""
        until = time.monotonic() + timeout_s
        done, found = self._ask_all(ask), []
        for _ in range(self.count):
            try:
                future = done.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            if not isinstance(future, ActorGridError) and future.exception() is None:
                found.append(future.result())
        return found

    def _first(self, ask: Callable[[ActorHandle[LightShard]], ActorFuture[Any]], timeout_s: float) -> Any:
        """The first answer that is one; ``None`` if all that answer in time have none. Raises if none answers."""
        until = time.monotonic() + timeout_s
        done, answered, failure = self._ask_all(ask), False, None
        for _ in range(self.count):
            try:
                future = done.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            error = future if isinstance(future, ActorGridError) else future.exception()
            if error is not None:
                failure = error
                continue
            answered = True
            if future.result():
                return future.result()
        if answered:
            return None
        if isinstance(failure, ActorGridError):
            raise failure
        raise CallTimeout(f"no shard of {self.group!r} answers", asked=f"within {timeout_s:g} s")


def start_shards(
    client: Client,
    group: str,
    count: int,
    root: Any,
    args: tuple[Any, ...],
    patience_s: float,
    options: dict[str, Any],
) -> LightShards:
    """See ``Client.start_shards``."""
    from .user_actors import actor

    check_group(group)
    if not isinstance(count, int) or not 1 <= count <= SLOTS_MAX:
        raise BadRequest("a number of shards out of range", asked=repr(count)[:40], hint=f"1 to {SLOTS_MAX}")
    if not PATIENCE_MIN_S <= patience_s <= PATIENCE_MAX_S:
        raise BadRequest(f"patience_s is from {PATIENCE_MIN_S:g} to {PATIENCE_MAX_S:g}", asked=str(patience_s)[:40])
    secret, every_s = secrets.token_bytes(16), options.get("checkpoint_every_s")
    chosen = {"cpus": 0.5, "max_restarts": RESTARTS, **options}
    shard = actor(detached=True, max_concurrency=CONCURRENCY, **chosen)(LightShard)
    handles: dict[int, ActorHandle[LightShard]] = {}
    try:
        for slot in range(count):
            named = shard.options(name=shard_name(group, slot)).on(client)
            handles[slot] = named.create(group, slot, count, secret, float(patience_s), every_s, root, args)
    except BaseException:
        for handle in handles.values():
            handle.stop(force=True)
        raise
    return LightShards(client, group, count, handles)


def find_shards(client: Client, group: str, timeout_s: float = 10.0) -> LightShards:
    """See ``Client.shards``."""
    first = find(client, shard_name(check_group(group), 0))
    try:
        count = first.layout().result(timeout_s)["count"]
    except TimeoutError as error:
        raise CallTimeout(f"the first shard of {group!r} does not answer", hint="its host may be lost") from error
    except ActorDied as error:
        raise NoSuchActor(f"there is no set {group!r} any more", asked=group) from error
    return LightShards(client, group, int(count), {0: first})
