"""How each action of recovery is carried out: strategies by name, those that ship and those that packages offer.

A package offers one by an entry point of the group ``actorgrid.recovery_strategies``: a class derived from
:class:`RecoveryStrategy`, or a function that gives one. Names that ship cannot be taken over. The settings
``faults.process_restart`` and so on say which is used; ``dry_run`` only records what would have been done, and ``off``
leaves the step out.
"""

from __future__ import annotations

import difflib
import json
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from time import time

from actorgrid.actors.ledger.commands import DrainHost
from actorgrid.actors.ledger.record_types import HostRecord
from actorgrid.errors import BadRequest, UnknownSetting
from actorgrid.supervisors.server import Server

from ...host.messages import RestartServer
from ...ledger.client import LedgerClient
from ...links.messages import AskHost
from ..messages import Rebalance
from ..moving import move_work
from ..rebalance import RebalancePlan
from .core import Act
from .outside_command import CommandEnd, run_command

GROUP = "actorgrid.recovery_strategies"
OFF = "off"
BY = "fault_detector"
RESTART_S = 10.0
PROPOSE_S = 10.0
REBALANCE_S = 60.0
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,252}")


@dataclass(frozen=True, slots=True)
class RecoveryEnd:
    """How an action ended: ``done``, ``dry_run`` or ``failed``, and what is to be told of it."""

    outcome: str
    found: str


@dataclass(frozen=True, slots=True)
class RecoveryMeans:
    """What a strategy works with: the server that asks others, its copy of the ledger, and the host it is about."""

    server: Server
    ledger: LedgerClient
    host: HostRecord
    names: Mapping[str, str]
    """``host``, ``host_id`` and ``address``, as templates have them."""


class RecoveryStrategy(ABC):
    """One way to carry out an action. It is told of each action once, also when leaders change meanwhile."""

    name = ""

    @abstractmethod
    async def carry_out(self, act: Act, means: RecoveryMeans) -> RecoveryEnd:
        """Carry *act* out; an ActorGridError that is raised is the reason why it failed."""


class DryRun(RecoveryStrategy):
    """Does nothing, and says what would have been done."""

    name = "dry_run"

    async def carry_out(self, act: Act, means: RecoveryMeans) -> RecoveryEnd:
        """Carry out nothing."""
        about = f" ({act.server})" if act.server else ""
        return RecoveryEnd("dry_run", f"would have done {act.action}{about} for host {means.names['host']}")


class SupervisorRestart(RecoveryStrategy):
    """Has the host's supervisor kill the silent server, which it then starts as its child spec says."""

    name = "supervisor"

    async def carry_out(self, act: Act, means: RecoveryMeans) -> RecoveryEnd:
        """Restart the server, there or, over links, elsewhere."""
        server = means.server
        if act.host_id == server.host.host_id:
            pid = await server.call("host", RestartServer(act.server, BY), RESTART_S)
        else:
            ask = AskHost(act.host_id, "restart_server", {"server": act.server}, RESTART_S)
            pid = await server.call("links", ask, RESTART_S + 1)
        return RecoveryEnd("done", f"{act.server} was restarted; its process was {pid}")


class Drain(RecoveryStrategy):
    """Grants the host nothing new, and has what may be stopped for others start again elsewhere."""

    name = "drain"

    async def carry_out(self, act: Act, means: RecoveryMeans) -> RecoveryEnd:
        """Drain the host, and ask its preemptible attempts to end."""
        ledger = means.ledger
        await ledger.propose(DrainHost(act.host_id, True, BY, at=time()), PROPOSE_S)
        for_whom = f"the trouble of host {means.names['host']}"
        moved, stay = await move_work(ledger, act.host_id, for_whom, means.server.log)
        return RecoveryEnd(
            "done", f"it gets nothing new; {moved} attempts move, {stay} allocations stay until they end"
        )


class CommandHook(RecoveryStrategy):
    """Runs the command of ``faults.command``."""

    name = "command"

    async def carry_out(self, act: Act, means: RecoveryMeans) -> RecoveryEnd:
        """Run it."""
        faults = means.server.host.settings.faults
        if not faults.command:
            return RecoveryEnd("failed", "faults.command is empty")
        argv = [_filled(part, means.names) for part in faults.command]
        return _end_of(argv[0], await run_command(means.server, argv, faults.action_timeout_s))


class Ipmi(RecoveryStrategy):
    """Turns the machine off and on by its management controller, with ``ipmitool``."""

    name = "ipmi"

    async def carry_out(self, act: Act, means: RecoveryMeans) -> RecoveryEnd:
        """Run ipmitool; the password is read by it from its file, and is on no command line."""
        faults = means.server.host.settings.faults
        argv = ["ipmitool", "-I", "lanplus", "-H", _filled(faults.ipmi_address or "{host}-bmc", means.names)]
        argv += ["-U", faults.ipmi_user] if faults.ipmi_user else []
        argv += ["-f", faults.ipmi_password_file] if faults.ipmi_password_file else []
        return _end_of("ipmitool", await run_command(means.server, [*argv, "chassis", "power", "cycle"], 60.0))


class HttpHook(RecoveryStrategy):
    """Sends a POST with the host and the reason to ``faults.http_url``: for a cloud, or whoever has the power."""

    name = "http"

    async def carry_out(self, act: Act, means: RecoveryMeans) -> RecoveryEnd:
        """Send it. ``id`` is the same for the same action, so that the other side may take it once."""
        faults = means.server.host.settings.faults
        if not faults.http_url:
            return RecoveryEnd("failed", "faults.http_url is empty")
        body = {
            "id": f"{act.host_id}/{act.number}",
            "action": act.action,
            **means.names,
            "reason": act.reason,
            "failures": act.failures,
        }
        argv = [sys.executable, "-m", "actorgrid.actors.cluster.faults.http_hook"]
        argv += [_filled(faults.http_url, means.names), str(faults.action_timeout_s)]
        argv += [faults.http_token_file] if faults.http_token_file else []
        told = json.dumps(body).encode("ascii")
        return _end_of("the POST", await run_command(means.server, argv, faults.action_timeout_s + 5.0, told))


class RebalanceCluster(RecoveryStrategy):
    """Has the LoadBalancer move sessions' workers off the host, and off hosts that have too much."""

    name = "load_balancer"

    async def carry_out(self, act: Act, means: RecoveryMeans) -> RecoveryEnd:
        """Ask it; what it then moves starts anew at its own clients' wish."""
        request = Rebalance(exclude=(act.host_id,), dry_run=False)
        plan: RebalancePlan = await means.server.call("load_balancer", request, REBALANCE_S)
        moved = sum(bool(move.get("done")) for move in plan["moves"])
        return RecoveryEnd("done", f"{moved} of {len(plan['moves'])} workers that should move are told to")


BUILT_IN: dict[str, type[RecoveryStrategy]] = {
    each.name: each for each in (DryRun, SupervisorRestart, Drain, CommandHook, Ipmi, HttpHook, RebalanceCluster)
}


def find_strategy(name: str) -> RecoveryStrategy:
    """The strategy of that name: one that ships, or one that a package offers. Raises UnknownSetting."""
    if name in BUILT_IN:
        return BUILT_IN[name]()
    offered = {each.name: each for each in entry_points(group=GROUP)}
    if name in offered:
        found = offered[name].load()()
        if isinstance(found, RecoveryStrategy):
            return found
    names = sorted({*BUILT_IN, *offered, OFF})
    close = difflib.get_close_matches(name.lower().replace("-", "_"), names, n=1, cutoff=0.5)
    raise UnknownSetting(
        f"there is no recovery strategy {name!r}",
        asked=name,
        found=", ".join(names),
        hint=f"did you mean {close[0]}?" if close else "see docs/faults.md",
    )


def _filled(template: str, names: Mapping[str, str]) -> str:
    """*template* with the names of the host. Raises BadRequest for a name that a command could take for an option."""
    for name, value in names.items():
        if "{" + name + "}" in template and NAME.fullmatch(value) is None:
            raise BadRequest(
                "the host's name cannot be put into a command",
                asked=f"{name}={value[:80]!r}",
                hint="letters, digits and . _ : - are allowed; {host_id} always is",
            )
        template = template.replace("{" + name + "}", value)
    return template


def _end_of(what: str, end: CommandEnd) -> RecoveryEnd:
    said = f": {end.said}" if end.said else ""
    if end.status == 0:
        return RecoveryEnd("done", f"{what} ended well{said}")
    how = "was not back in time, and killed" if end.status is None else f"ended with status {end.status}"
    return RecoveryEnd("failed", f"{what} {how}{said}")
