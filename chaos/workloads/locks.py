"""Locks: some that nobody takes away, some whose holders go silent, so that their leases run out."""

from __future__ import annotations

from actorgrid.actors.consensus.commands import acquire_lock, release_lock, renew_lock
from actorgrid.chaos.checkers.checker import Call
from actorgrid.chaos.simulator.asking import Told

from .workload import Client, Workload

LASTING, EXPIRING = ("lasting1", "lasting2"), ("expiring1", "expiring2")
LASTING_S, EXPIRING_S = 3_600.0, 0.6


class LocksClient(Client):
    """Acquires a lock, renews it now and then, and gives it back, or forgets that it has it."""

    _held = ""
    _token: list[int] | None = None

    def next_call(self) -> None:
        """Release or renew what is held, else try for one of four locks; sometimes in line for it."""
        at = self.world.wall()
        name, token, chance = self._held, self._token, self.dice.random()
        if name and token is not None:
            if chance < 0.2:
                self.write(name, renew_lock(name, self.name, at, token))
                return
            self._held, self._token = "", None
            if name in LASTING or chance < 0.6:
                self.write(name, release_lock(name, self.name, at, token))
                return
        name = (LASTING + EXPIRING)[int(self.dice.random() * 4)]
        ttl_s = LASTING_S if name in LASTING else EXPIRING_S
        self.write(name, acquire_lock(name, self.name, ttl_s, at, wait=name in EXPIRING and chance < 0.5))

    def answered(self, call: Call, told: Told) -> None:
        """Remember what is held now."""
        assert call.command is not None, "locks are not read here"
        kind = call.command["type"]
        if kind == "acquire_lock" and told.error is None and told.result["held"]:
            self._held, self._token = call.key, told.result["token"]
        elif kind == "renew_lock" and told.error is not None:
            self._held, self._token = "", None


class Locks(Workload):
    """Clients that share four locks."""

    client_class = LocksClient
