"""Locks and semaphores: some that nobody takes away, some whose holders go silent, so that their leases run out."""

from __future__ import annotations

from actorgrid.actors.ledger.commands import AcquireLock, ReleaseLock, RenewLock
from actorgrid.chaos.checkers.checker import ClientCall
from actorgrid.chaos.simulator.cluster import Cluster
from actorgrid.chaos.simulator.requests import ClientReply

from .workload import Workload, WorkloadClient

LASTING, EXPIRING = ("lasting1", "lasting2", "lasting_pair"), ("expiring1", "expiring2", "expiring_pair")
LASTING_S, EXPIRING_S = 3_600.0, 0.6
HELD_MAX = 2


class LocksClient(WorkloadClient):
    """Holds up to two things as two owners; renews them now and then, and gives them back, or forgets that it has."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(cluster, name)
        self._held: dict[tuple[str, str], list[int]] = {}

    def next_call(self) -> None:
        """Renew or release what is held, else try for one of six locks; sometimes in line for it."""
        at = self.world.wall()
        chance = self.rng.random()
        if self._held and (len(self._held) >= HELD_MAX or self.rng.random() < 0.6):
            name, owner = list(self._held)[int(self.rng.random() * len(self._held))]
            if chance < 0.2:
                self.write(name, RenewLock(name, owner, at=at, token=self._held[name, owner]))
                return
            token = self._held.pop((name, owner))
            if name in LASTING or chance < 0.6:
                self.write(name, ReleaseLock(name, owner, at=at, token=token))
                return
        name = (LASTING + EXPIRING)[int(self.rng.random() * 6)]
        owner = f"{self.name}.{int(self.rng.random() * HELD_MAX)}"
        ttl_s = LASTING_S if name in LASTING else EXPIRING_S
        wait = name in EXPIRING and chance < 0.5
        self.write(name, AcquireLock(name, owner, ttl_s, at=at, wait=wait, slots=2 if name.endswith("pair") else 1))

    def answered(self, call: ClientCall, told: ClientReply) -> None:
        """Remember what is held now."""
        command = call.command
        assert isinstance(command, AcquireLock | RenewLock | ReleaseLock), "nothing else is asked here"
        kind, mine = command.verb, (call.key, command.owner)
        if kind == "acquire_lock" and told.error is None and told.result["held"]:
            self._held[mine] = told.result["token"]
        elif kind == "renew_lock" and told.error is not None:
            self._held.pop(mine, None)


class LocksWorkload(Workload):
    """Clients that share four locks and two semaphores of two slots."""

    client_class = LocksClient
