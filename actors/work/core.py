"""Which worker serves which lease, when workers start and when they go: decisions only, carried out by leases.py.

A worker that has run nobody's code takes any lease of its pool: environment and devices are set as it is handed
over. One that is kept apart has a uid from its start, and is started for a lease of that uid's user. Once used it is
bound to that session, environment and devices: it goes back to idle only for the same session, and only without GPUs
(a process that touched a device may hold memory there); else it is retired. Forking a new one costs milliseconds, so
nothing is gained by trusting a used one further.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

MAX_USED_IDLE = 4  # used workers kept for their session, per pool


@dataclass(frozen=True, slots=True)
class LeaseKey:
    """What its first lease binds a worker to: session, environment and devices."""

    session_id: str
    gpu_uuids: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    uid: int = 0
    """That of the work, where it is kept apart; 0: the agent's."""


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Fork a worker."""

    worker_id: str
    pool: str
    number: int
    uid: int = 0


@dataclass(frozen=True, slots=True)
class LendWorker:
    """Hand a ready worker to a lease."""

    worker_id: str
    lease_id: str


@dataclass(frozen=True, slots=True)
class ReclaimWorker:
    """Have the worker let go of its client and say that it is idle."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class RetireWorker:
    """End the worker."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """Says that the worker of this lease died: the lease is worth nothing."""

    lease_id: str
    worker_id: str


Instruction = StartWorker | LendWorker | ReclaimWorker | RetireWorker | LeaseLost

STARTING, IDLE, LEASED, CLOSING, RETIRING = "starting", "idle", "leased", "closing", "retiring"


@dataclass(slots=True)
class PoolWorker:
    """The state of one worker."""

    worker_id: str
    pool: str
    number: int
    state: str
    lease_id: str | None = None
    key: LeaseKey | None = None
    spoiled: bool = False
    idle_since: float = 0.0
    """When its session let go of it, where it is idle for that one."""
    uid: int = 0
    """As of ``LeaseKey``: it serves no lease of another."""


class WorkerPools:
    """All pool workers of a host. ``sizes``: pool to (kept warm, at most). Leases beyond the most wait in order.

    *idle_s*: by pool, for how long a used worker stays for its session; without it for as long as there is room.
    """

    def __init__(
        self, sizes: Mapping[str, tuple[int, int]], id_prefix: str, idle_s: Mapping[str, float] | None = None
    ) -> None:
        self._sizes = dict(sizes)
        self._idle_s = dict(idle_s or {})
        self._prefix = id_prefix
        self._made = 0
        self.workers: dict[str, PoolWorker] = {}
        self._waiting: dict[str, deque[str]] = {pool: deque() for pool in sizes}
        self._keys: dict[str, tuple[str, LeaseKey]] = {}
        self._stopping = False

    # -- events

    def adopt(
        self, worker_id: str, pool: str, number: int, lease_id: str | None, key: LeaseKey | None, uid: int = 0
    ) -> None:
        """Take over a worker that lives from before this start."""
        if pool not in self._sizes:
            pool = next(iter(self._sizes))
        state = LEASED if lease_id else IDLE
        self.workers[worker_id] = PoolWorker(worker_id, pool, number, state, lease_id, key, uid=uid)
        if lease_id and key:
            self._keys[lease_id] = (pool, key)

    def tick(self, now: float = 0.0) -> list[Instruction]:
        """Start the workers missing to the warm size, and end one that is beyond it in each pool, and used ones that
        were idle for long.

        One beyond it was started for a lease that ended before it was ready.
        """
        todo = self._fill()
        for worker in list(self.workers.values()):
            idle_for_s = now - worker.idle_since if worker.state == IDLE and worker.key is not None else 0.0
            if idle_for_s > self._idle_s.get(worker.pool, idle_for_s):
                todo.append(self._retire(worker))
        for pool, (warm, _most) in self._sizes.items():
            fresh = self._fresh(pool)
            idle = [each for each in fresh if each.state == IDLE]
            if idle and len(fresh) - self._reserved(pool) > warm:
                todo.append(self._retire(idle[-1]))
            # One of a uid that is idle was started for a lease that ended before it was ready.
            of_uids = [each for each in self._of(pool) if each.uid and each.state == IDLE and each.key is None]
            todo += [self._retire(each) for each in of_uids]
        return todo

    def _fresh(self, pool: str) -> list[PoolWorker]:
        """Those that any lease may have that is not kept apart."""
        return [each for each in self._of(pool) if each.state in (STARTING, IDLE) and each.key is None and not each.uid]

    def _reserved(self, pool: str) -> int:
        return sum(not self._keys[lease_id][1].uid for lease_id in self._waiting[pool])

    def _fill(self) -> list[Instruction]:
        started: list[Instruction] = []
        for pool, (warm, most) in self._sizes.items():
            fresh, reserved = len(self._fresh(pool)), self._reserved(pool)
            while not self._stopping and fresh - reserved < warm and len(self._of(pool)) < most:
                started.append(self._start(pool))
                fresh += 1
        return started

    def lease_granted(self, lease_id: str, pool: str, key: LeaseKey) -> list[Instruction]:
        """Serve a lease that the ledger granted here. A lease known already changes nothing."""
        if lease_id in self._keys or self._stopping:
            return []
        if pool not in self._sizes:
            pool = "gpu_compute" if key.gpu_uuids and "gpu_compute" in self._sizes else next(iter(self._sizes))
        self._keys[lease_id] = (pool, key)
        self._waiting[pool].append(lease_id)
        return self._serve(pool)

    def lease_ended(self, lease_id: str) -> list[Instruction]:
        """End a lease, whose allocation is gone from the ledger."""
        pool, _key = self._keys.pop(lease_id, ("", LeaseKey("", (), ())))
        if not pool:
            return []
        if lease_id in self._waiting[pool]:
            self._waiting[pool].remove(lease_id)
        for worker in self.workers.values():
            if worker.lease_id == lease_id and worker.state == LEASED:
                worker.lease_id = None
                keep = worker.key is not None and not worker.key.gpu_uuids and not worker.spoiled
                worker.state = CLOSING if keep and not self._stopping else RETIRING
                return [ReclaimWorker(worker.worker_id) if worker.state == CLOSING else RetireWorker(worker.worker_id)]
        return []

    def worker_ready(self, worker_id: str) -> list[Instruction]:
        """Take note that a started worker listens."""
        worker = self.workers.get(worker_id)
        if worker is None or worker.state != STARTING:
            return []
        worker.state = IDLE
        return self._serve(worker.pool)

    def worker_idle(self, worker_id: str, now: float = 0.0) -> list[Instruction]:
        """Take note that a worker has let go of its client, as asked. One that is spoiled is retired."""
        worker = self.workers.get(worker_id)
        if worker is None or worker.state != CLOSING:
            return []
        if worker.spoiled:
            return [self._retire(worker)]
        worker.state, worker.idle_since = IDLE, now
        used = [each for each in self._of(worker.pool) if each.state == IDLE and each.key is not None]
        retired = [self._retire(each) for each in used[: max(0, len(used) - MAX_USED_IDLE)]]
        return [*retired, *self._serve(worker.pool)]

    def worker_spoiled(self, worker_id: str) -> None:
        """Mark a worker that is not to be reused after its present lease."""
        if worker_id in self.workers:
            self.workers[worker_id].spoiled = True

    def worker_overdue(self, worker_id: str) -> list[Instruction]:
        """Retire a worker that did not let go in time."""
        worker = self.workers.get(worker_id)
        return [self._retire(worker)] if worker is not None and worker.state == CLOSING else []

    def worker_ended(self, worker_id: str) -> list[Instruction]:
        """Take note that a worker's process is gone, for whatever reason."""
        worker = self.workers.pop(worker_id, None)
        if worker is None:
            return []
        lost: list[Instruction] = []
        if worker.lease_id is not None and worker.lease_id in self._keys:
            del self._keys[worker.lease_id]
            lost.append(LeaseLost(worker.lease_id, worker_id))
        return [*lost, *self._serve(worker.pool)]

    def stop(self) -> list[Instruction]:
        """Retire all workers; nothing is started from now on."""
        self._stopping = True
        return [self._retire(worker) for worker in self.workers.values() if worker.state != RETIRING]

    # -- questions

    def worker_of(self, lease_id: str) -> PoolWorker | None:
        """The worker a lease has, if it has one yet."""
        return next((each for each in self.workers.values() if each.lease_id == lease_id), None)

    def leases(self) -> Iterable[str]:
        """The leases that are served or wait."""
        return list(self._keys)

    def key_of(self, lease_id: str) -> LeaseKey:
        """The session, environment and devices that the lease asks of its worker."""
        return self._keys[lease_id][1]

    def counts(self) -> dict[tuple[str, str], int]:
        """Workers by pool and state."""
        return Counter((worker.pool, worker.state) for worker in self.workers.values())

    # -- inside

    def _of(self, pool: str) -> list[PoolWorker]:
        return [worker for worker in self.workers.values() if worker.pool == pool]

    def _start(self, pool: str, uid: int = 0) -> StartWorker:
        self._made += 1
        taken = {worker.number for worker in self._of(pool)}
        number = next(count for count in range(1, len(taken) + 2) if count not in taken)
        worker = PoolWorker(f"{pool}-{self._prefix}-{self._made}", pool, number, STARTING, uid=uid)
        self.workers[worker.worker_id] = worker
        return StartWorker(worker.worker_id, pool, number, uid)

    def _retire(self, worker: PoolWorker) -> RetireWorker:
        worker.state = RETIRING
        return RetireWorker(worker.worker_id)

    def _serve(self, pool: str) -> list[Instruction]:
        waiting = self._waiting[pool]
        todo: list[Instruction] = []
        for lease_id in list(waiting):
            key = self._keys[lease_id][1]
            idle = [each for each in self._of(pool) if each.state == IDLE and not each.spoiled and each.uid == key.uid]
            match = [each for each in idle if each.key == key] or [each for each in idle if each.key is None]
            if not match:
                continue  # a later one may have a worker bound to it idle; a fresh one goes to the first in line
            worker = match[0]
            worker.state, worker.lease_id, worker.key = LEASED, lease_id, key
            waiting.remove(lease_id)
            todo.append(LendWorker(worker.worker_id, lease_id))
        starting = Counter(each.uid for each in self._of(pool) if each.state == STARTING)
        most = self._sizes[pool][1]
        for lease_id in list(waiting) if not self._stopping else ():
            uid = self._keys[lease_id][1].uid
            if starting[uid]:
                starting[uid] -= 1  # one is on its way
                continue
            if len(self._of(pool)) >= most:
                bound = next((each for each in self._of(pool) if each.state == IDLE), None)
                if bound is not None:
                    todo.append(self._retire(bound))  # idle for others: its room is wanted
                break
            todo.append(self._start(pool, uid))
        return [*todo, *self._fill()]
