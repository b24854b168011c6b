"""Which daemons of NVIDIA's MPS a host's shares of GPUs need, and which shares run under none.

No I/O and no clock: events in, instructions out. A daemon is of one GPU and one tenant. MPS lets the fault of one
client end all others of its server, so that no client of another tenant may be there, and none on another GPU. Of a
tenant's users whose work has a uid of its own each has a daemon of that uid: a server takes clients of one uid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

CLIENTS_MAX = 48
"""Shares under one daemon: a server takes 48 clients on a GPU since Volta, and each share is one at least."""
DAEMONS_MAX = 256
IDLE_S = 30.0
"""A daemon that nobody has a share under ends after that long: the next share of its tenant may come soon."""
BACKOFF_S = 1.0
BACKOFF_MAX_S = 60.0
STEADY_S = 60.0
"""A daemon that ran for so long is trusted again: its next end is a new trouble."""
REMEMBERED_S = 60.0
"""Work that was told to go without MPS is known for at least so long, should our copy of the ledger lag behind."""


class MpsKey(NamedTuple):
    """Whose daemon it is."""

    uuid: str
    """The GPU."""
    tenant: str
    uid: int = 0
    """The uid that it has, and all work under it; 0: the agent's."""


class ShareHeld(NamedTuple):
    """A share of a GPU that is given out on this host."""

    work_id: str
    key: MpsKey


class DaemonState(StrEnum):
    """How far a daemon is."""

    STARTING = "starting"
    RUNNING = "running"
    BROKEN = "broken"
    QUITTING = "quitting"


@dataclass(slots=True)
class MpsDaemon:
    """One control daemon, or the want of one."""

    state: DaemonState
    used_at: float
    """When somebody last had a share under it, or asked for one."""
    started_at: float = -math.inf
    retry_at: float = math.inf
    backoff_s: float = BACKOFF_S
    why: str = ""
    """Of a broken one: what ended it, or why it does not start."""
    is_told: bool = True
    """Whether those who had a share under it when it broke count as without."""


@dataclass(frozen=True, slots=True)
class StartDaemon:
    """Start the daemon; ``started`` or ``failed`` says how that went."""

    key: MpsKey


@dataclass(frozen=True, slots=True)
class QuitDaemon:
    """End the daemon, which nobody has a share under; ``gone`` says that it has ended."""

    key: MpsKey


MpsInstruction = StartDaemon | QuitDaemon


@dataclass(slots=True)
class MpsShares:
    """Tell it what happens, and read ``daemons`` and ``without``. At most DAEMONS_MAX daemons are known."""

    daemons: dict[MpsKey, MpsDaemon] = field(default_factory=dict)
    without: dict[str, float] = field(default_factory=dict)
    """Work that has a share and is not under MPS, since when."""
    uids: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Work that has a uid of its own: which, and since when that is known."""
    restarts_total: int = 0

    def join(self, key: MpsKey, held: Iterable[ShareHeld], now_s: float) -> tuple[str, list[MpsInstruction]]:
        """Why a further share cannot be under a daemon, ``""``: it can, once that runs; and what is to be done first.

        Work that is in *held* already counts once.
        """
        daemon = self.daemons.get(key)
        if daemon is None:
            if len(self.daemons) >= DAEMONS_MAX:
                return f"{DAEMONS_MAX} MPS daemons run here already", []
            self.daemons[key] = MpsDaemon(DaemonState.STARTING, now_s)
            return "", [StartDaemon(key)]
        daemon.used_at = now_s
        if daemon.state is DaemonState.BROKEN:
            return daemon.why, []
        if daemon.state is DaemonState.QUITTING:
            return "its MPS daemon is just ending", []
        if sum(share.key == key for share in held) > CLIENTS_MAX:
            return f"an MPS server takes {CLIENTS_MAX} clients", []
        return "", []

    def has_uid(self, work_id: str, uid: int, now_s: float) -> None:
        """Work with a share runs as that uid; 0: as the agent's."""
        if uid:
            self.uids[work_id] = (uid, now_s)
        else:
            self.uids.pop(work_id, None)

    def uid_of(self, work_id: str) -> int:
        """The uid of work with a share; 0: the agent's."""
        return self.uids.get(work_id, (0, 0.0))[0]

    def go_without(self, work_id: str, now_s: float) -> None:
        """Work begins, or goes on, without MPS."""
        self.without[work_id] = now_s

    def is_under(self, work_id: str) -> None:
        """Work begins under MPS."""
        self.without.pop(work_id, None)

    def started(self, key: MpsKey, now_s: float) -> None:
        """The daemon runs."""
        daemon = self.daemons.setdefault(key, MpsDaemon(DaemonState.RUNNING, now_s))
        if daemon.state is DaemonState.BROKEN or daemon.why:
            self.restarts_total += 1
        daemon.state, daemon.started_at, daemon.why = DaemonState.RUNNING, now_s, ""

    def failed(self, key: MpsKey, why: str, now_s: float) -> None:
        """The daemon did not start, or has ended without being asked to: whoever was under it is not any more."""
        daemon = self.daemons.setdefault(key, MpsDaemon(DaemonState.STARTING, now_s))
        if daemon.state is DaemonState.RUNNING and now_s - daemon.started_at >= STEADY_S:
            daemon.backoff_s = BACKOFF_S
        daemon.is_told = daemon.state is not DaemonState.RUNNING
        daemon.state, daemon.why = DaemonState.BROKEN, why
        daemon.retry_at = now_s + daemon.backoff_s
        daemon.backoff_s = min(BACKOFF_MAX_S, 2 * daemon.backoff_s)

    def gone(self, key: MpsKey) -> None:
        """The daemon has ended as it was asked to."""
        self.daemons.pop(key, None)

    def look(self, held: Iterable[ShareHeld], now_s: float) -> list[MpsInstruction]:
        """Take the shares that are given out now; gives what is to be done."""
        held = list(held)
        ids = {share.work_id for share in held}
        self.without = {id: at for id, at in self.without.items() if id in ids or now_s - at < REMEMBERED_S}
        self.uids = {id: one for id, one in self.uids.items() if id in ids or now_s - one[1] < REMEMBERED_S}
        wanted = {share.key for share in held}
        todo: list[MpsInstruction] = []
        for key, daemon in list(self.daemons.items()):
            if key in wanted:
                daemon.used_at = now_s
            if not daemon.is_told:
                daemon.is_told = True
                for share in held:
                    if share.key == key:
                        self.go_without(share.work_id, now_s)
            is_idle = now_s - daemon.used_at >= IDLE_S
            if daemon.state is DaemonState.BROKEN and is_idle:
                del self.daemons[key]
            elif daemon.state is DaemonState.BROKEN and now_s >= daemon.retry_at:
                daemon.state = DaemonState.STARTING
                todo.append(StartDaemon(key))
            elif daemon.state is DaemonState.RUNNING and is_idle:
                daemon.state = DaemonState.QUITTING
                todo.append(QuitDaemon(key))
        return todo

    def next_retry(self) -> float:
        """When a broken daemon is to be started again; infinite: none is."""
        return min(
            (each.retry_at for each in self.daemons.values() if each.state is DaemonState.BROKEN), default=math.inf
        )

    def is_enforced(self, uuid: str, held: Iterable[ShareHeld]) -> bool:
        """Whether MPS holds all shares of a GPU, and would hold the next: no daemon is broken, no work without one."""
        if any(key.uuid == uuid and one.state is DaemonState.BROKEN for key, one in self.daemons.items()):
            return False
        if any(key.uuid == uuid and one.why for key, one in self.daemons.items()):
            return False  # it is being started once more
        return not any(share.key.uuid == uuid and share.work_id in self.without for share in held)
