"""Keeps what keys used of their budgets, in a gateway's main process: from its workers, with other hosts, on the disk.

Workers tell what they counted five times a second and are told what was used beside that; other hosts are told of this
host's counts four times a second, and once a second of a part of all that is known, 2,000 counts at a time. So gateways
that reach each other know of each other's within a second. What is known is written once a second (above 5,000 counts
every 10 s): a process that is killed loses at most that.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from actorgrid.actors.files.identity import write_atomically
from actorgrid.actors.serving.table import ServiceTable
from actorgrid.errors import ActorGridError, MalformedMessage

from .key_gate import month_of
from .month_budgets import MonthBudgets, read_counts, read_spent, write_counts

log = logging.getLogger("actorgrid.model_gateway")
BUDGETS_NAME = "budgets.bin"
SOURCE = "budgets"
"""Under this name counts go to other hosts, among what else is told them."""
TICK_S = 0.25
PART_TICKS, WRITE_TICKS = 4, 4
MANY, MANY_WRITE_TICKS = 5_000, 40


class BudgetKeeper:
    """The budgets of one host. *tell_peers*: tells the gateways of other hosts; *tell_worker*: one of this one's."""

    def __init__(
        self, folder: Path, tell_peers: Callable[[bytes], None], tell_worker: Callable[[int, list[Any]], None]
    ) -> None:
        self._path = folder / BUDGETS_NAME
        self._tell_peers = tell_peers
        self._tell_worker = tell_worker
        self._budgets = MonthBudgets("")
        self._told: dict[int, int] = {}
        """By worker: the version that it was told."""
        self._written = 0
        self._ticks = 0

    def use(self, table: ServiceTable) -> None:
        """Count what has a budget by *table*. The first one says which host this is: then what was written is read."""
        if self._budgets.host != table.host:
            self._budgets = MonthBudgets(table.host)
            self._told = dict.fromkeys(self._told, -1)
            self._recall()
        self._budgets.keep_only(each.key_id for each in table.keys if each.has_budget)
        for worker in list(self._told):
            self._tell(worker)  # before they are told the table: no request is let through in between

    def worker_began(self, worker: int) -> None:
        """A worker is there, and knows nothing."""
        self._told.pop(worker, None)
        self._tell(worker)

    def worker_ended(self, worker: int) -> None:
        """A worker is no more."""
        self._budgets.worker_ended(worker)
        self._told.pop(worker, None)

    def worker_told(self, worker: int, month: str, rows: list[Any]) -> None:
        """Take what a worker counted. Raises MalformedMessage."""
        self._turn()
        self._budgets.worker_told(worker, month, read_spent(rows), int(time.time() * 1_000))

    def heard(self, body: bytes) -> None:
        """Take what the gateway of another host told; what is not as it should be is dropped whole."""
        self._turn()
        try:
            self._budgets.heard(*read_counts(body))
        except MalformedMessage as error:
            log.warning("%s", error)

    async def run(self) -> None:
        """Tell and write until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            self._ticks += 1
            self._turn()
            rows = self._budgets.take_changed()
            if self._ticks % PART_TICKS == 0:
                rows += self._budgets.next_part()
            if rows:
                self._tell_peers(write_counts(self._budgets.month, rows))
            for worker in list(self._told):
                self._tell(worker)
            if self._ticks % (WRITE_TICKS if len(self._budgets) <= MANY else MANY_WRITE_TICKS) == 0:
                await asyncio.to_thread(self._write, *self._unwritten())

    def close(self) -> None:
        """Write the last of it."""
        self._write(*self._unwritten())

    def _turn(self) -> None:
        self._budgets.turn(month_of(time.time()))

    def _tell(self, worker: int) -> None:
        if self._told.get(worker) != self._budgets.version:
            self._told[worker] = self._budgets.version
            beside: Mapping[str, tuple[int, int]] = self._budgets.spent_beside(worker)
            rows = [[key_id, *spent] for key_id, spent in beside.items()]
            self._tell_worker(worker, ["spent", self._budgets.month, rows])

    # -- the disk

    def _unwritten(self) -> tuple[int, bytes]:
        version = self._budgets.version
        return version, self._budgets.to_bytes() if version != self._written and self._budgets.host else b""

    def _write(self, version: int, text: bytes) -> None:
        if not text:
            return
        try:
            write_atomically(self._path, text)
            self._written = version
        except ActorGridError as error:
            log.warning("what keys used of their budgets is not kept yet: %s", error)

    def _recall(self) -> None:
        self._turn()
        try:
            self._budgets.heard(*read_counts(self._path.read_bytes()))
        except FileNotFoundError:
            pass
        except (OSError, MalformedMessage) as error:
            log.warning("what keys used of their budgets is not known here: %s", error)
