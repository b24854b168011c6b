"""What may not have happened, read from what clients were told, what work wrote down, and the hosts' own logs.

The checkers of the simulator read the real logs here: the same words, the same promises.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from actorgrid.actors.consensus.apply import apply_entry
from actorgrid.actors.consensus.ledger_check import read_log
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.raft.messages import Entry
from actorgrid.chaos.checkers.answers import ExactlyOnce
from actorgrid.chaos.checkers.checker import Checker
from actorgrid.chaos.checkers.grants import Grants
from actorgrid.chaos.checkers.jobs import LostJobs
from actorgrid.chaos.checkers.linearizability import UNKNOWN, apply_register, check
from actorgrid.chaos.checkers.locks import LockGrants, apply_slots
from actorgrid.configs.paths import HostPaths
from tests.system import hold
from tests.system.net_hosts import NetHost, Standstill
from tests.system.net_work import Told

LEADS = "leads the ledger in term"
WAKES_S = 1.0
"""So long after a host has woken, work that is over may still be there: it is ended as soon as a CPU is free."""


class LogOnly:
    """What the checkers may ask of a host of which only the log is read."""

    def __init__(self, number: int) -> None:
        self.id = number


def explain(told: Told) -> bool:
    """Whether some order of the calls explains the answers; false when the search was given up. Fails where none."""
    # A swap of unknown end whose value nobody saw need not have happened: without those the search is short.
    seen = {operation.answer for operation in told.swaps}
    swaps = [each for each in told.swaps if each.answer is not UNKNOWN or each.call[1] in seen]
    decided = True
    for verdict in (check(swaps, None, apply_register), check(told.locks, frozenset(), apply_slots)):
        stuck = "\n".join(map(str, verdict.stuck))
        where = f"{verdict.key}: {verdict.explained} calls explained, then none of"
        assert verdict.linearizable is not False, f"{where}\n{stuck}"
        decided = decided and verdict.linearizable is True
    return decided


def no_violation(folder: Path, isolation_s: float, standstills: Sequence[Standstill] = ()) -> None:
    """What the work itself saw: more on a device than fits, two attempts of one job at once.

    The lock by which an attempt sees an earlier one is held by a process that stands still too. Such a one is over once
    its host was still for *isolation_s*: it does nothing until it wakes, and is ended then. So to meet it is no fault.
    """
    found = [line for line in hold.lines(folder, "violations") if not _stood_still(line, isolation_s, standstills)]
    assert not found, "\n".join(map(str, found))


def _stood_still(violation: dict[str, Any], isolation_s: float, standstills: Sequence[Standstill]) -> bool:
    """Whether the attempt that it met was over, on a host that still stood or had just woken."""
    other = violation.get("other")
    return bool(other) and any(
        each.began + isolation_s <= violation["at"] <= each.ended + WAKES_S and (each.attempts / other).is_dir()
        for each in standstills
    )


def one_leader_a_term(hosts: Iterable[NetHost]) -> dict[int, int]:
    """Who led in each term, by the hosts' own logs. Fails when two did."""
    led: dict[int, int] = {}
    for host in hosts:
        for line in host.log().splitlines():
            if LEADS not in line:
                continue
            term = int(str(json.loads(line)["message"]).rpartition(" ")[2])
            assert led.setdefault(term, host.number) == host.number, f"{led[term]} and {host.number} led in term {term}"
    return led


def committed(host: NetHost) -> list[Entry]:
    """The entries in its log that it knows to be committed; the host does not run. All of them, if none was dropped."""
    found = read_log(HostPaths(host.data_dir).ledger_dir / "segments", 0, lambda _label, _done, _total: None)
    assert found.hard_state is not None, f"host {host.number} has no state of its log"
    return [entry for entry in found.entries if entry.index <= found.hard_state.commit]


def check_logs(hosts: list[NetHost]) -> Ledger:
    """One history on all hosts, and nothing in it that may not be; gives the state that it ends with.

    The first of *hosts* has its log from the first entry on.
    """
    logs = {host.number: committed(host) for host in hosts}
    longest = max(logs.values(), key=len)
    assert longest and longest[0].index == 1, "no host has the whole log"
    by_index = {entry.index: entry for entry in longest}
    for number, entries in logs.items():
        for entry in entries:
            other = by_index.get(entry.index, entry)
            assert entry == other, f"host {number} committed {entry}, another {other}"
    checkers: list[Checker] = [Grants(), LockGrants(), ExactlyOnce(), LostJobs()]
    state = Ledger()
    for entry in longest:
        outcome = apply_entry(state, entry).outcome
        for checker in checkers:
            checker.applied(LogOnly(1), entry, outcome, state)  # type: ignore[arg-type] - none of these asks for more
    return state
