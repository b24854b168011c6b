"""What the leader does about hosts in trouble: pictures of hosts in, decisions out; decisions only.

It keeps nothing. All that it decides by is told: what each host says of itself, the failures that the host has kept
(``failure_history.py``), and what the ledger says was done about it. So a leader that is new decides as the one before
would have, and what it decides is begun in the ledger before it is done (``ledger/tables/recoveries.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from actorgrid.actors.ledger.recovery_records import (
    CLUSTER_REBALANCE,
    ESCALATION,
    NO_RECOVERY,
    NODE_RESTART,
    PROCESS_RESTART,
    RELEASE,
    HostRecoveryRecord,
    MaintenanceRecord,
    RecoveryRecord,
    maintained,
)

from .check_results import CheckResult, CheckStatus
from .escalation import PATIENCE_S, EscalationPolicy, Possible, next_step, step_after
from .failure_history import HealthEvent, failures_since
from .flap_damping import Damping, damping
from .fuse import Fuse

SERVER = "server"
HOLD_S = 600.0
"""A host that is lost counts as being dealt with for so long after the last action: it may never be back."""


@dataclass(frozen=True, slots=True)
class HostPicture:
    """All that is known of one host. ``results`` and ``events``: its own, and what the leader saw of it."""

    host_id: str
    name: str
    results: tuple[CheckResult, ...] = ()
    events: tuple[HealthEvent, ...] = ()
    record: HostRecoveryRecord | None = None
    lost: bool = False
    """The ledger has given its work up."""
    away: bool = False
    """Nothing is heard of it."""
    expected_away: bool = False
    """It has said that it would be away: it restarts."""
    carried_out_here: bool = False
    """The action that is open is being carried out by whoever decides now."""

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        """The results that are failures."""
        return tuple(result for result in self.results if result.status is CheckStatus.FAILED)

    @property
    def faulty(self) -> bool:
        """Whether something is to be done about it by what it looks like now."""
        return bool(self.failed) and not self.expected_away


@dataclass(frozen=True, slots=True)
class Act:
    """Begin this action, carry it out, and say how it ended."""

    host_id: str
    number: int
    action: str
    reason: str
    evidence: dict[str, float | str]
    failures: int
    server: str = ""
    """Which is to be restarted."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End an action of which nobody can say how it ended: whoever began it leads no more."""

    host_id: str
    number: int


Decision = Act | GiveUp


@dataclass(frozen=True, slots=True)
class HostOutlook:
    """What is, and is to be, done about one host; for ``why host``."""

    failures: int
    damping: Damping
    level: int
    maintenance: MaintenanceRecord | None
    next_action: str = ""
    """What would be done next; empty: nothing is left, or needed."""
    next_at: float | None = None
    """When that could be at the earliest; ``None``: it takes more failures."""
    more_failures: int = 0
    held_back: str = ""
    """Why what is due is not done now."""
    decision: Decision | None = field(default=None)


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What decisions depend on beside the host. ``actions``: those that have a strategy here."""

    policy: EscalationPolicy
    fuse: Fuse
    now: float
    hosts: int
    actions: frozenset[str] = frozenset(ESCALATION)
    serving: int = 2
    """How many hosts could take work."""


def decide(
    pictures: Sequence[HostPicture],
    policy: EscalationPolicy,
    now: float,
    actions: Iterable[str] = ESCALATION,
) -> tuple[list[Decision], dict[str, HostOutlook]]:
    """What to do now, and the outlook of every host. At most as many begin as the fuse allows."""
    decisions: list[Decision] = []
    outlooks: dict[str, HostOutlook] = {}
    # What somebody works on may look as it likes: it says nothing about the others.
    judged = [picture for picture in pictures if maintained(picture.record, now) is None]
    faulty = sum(picture.faulty for picture in judged)
    engaged = sum(is_engaged(picture, now) for picture in pictures)
    serving = sum(not picture.lost and not picture.away and not picture.faulty for picture in pictures)
    # Who has failed most goes first, so that the fuse leaves out those that can wait best.
    ranked = sorted(pictures, key=lambda each: (-len(counted(each, policy, now)), each.host_id))
    for picture in ranked:
        fuse = Fuse(len(judged), faulty, engaged)
        around = Circumstances(policy, fuse, now, len(pictures), frozenset(actions), serving)
        outlook = outlook_of(picture, around)
        outlooks[picture.host_id] = outlook
        if outlook.decision is not None:
            decisions.append(outlook.decision)
            begins = isinstance(outlook.decision, Act) and outlook.decision.action != RELEASE
            engaged += begins and not is_engaged(picture, now)
    return decisions, outlooks


def is_engaged(picture: HostPicture, now: float) -> bool:
    """Whether the host is being dealt with: it counts against the fuse."""
    record = picture.record or NO_RECOVERY
    if record["open"]:
        return True
    if record["level"] < 2:
        return False
    return not picture.lost or now - _last_at(record) < HOLD_S


def counted(picture: HostPicture, policy: EscalationPolicy, now: float) -> tuple[HealthEvent, ...]:
    """The failures that count: of the last hour, since the host was released, and none of a maintenance window."""
    record = picture.record or NO_RECOVERY
    released = max((action["at"] for action in record["actions"] if action["action"] == RELEASE), default=0.0)
    return tuple(event for event in _outside_maintenance(picture, policy, now) if event.at > released)


def _outside_maintenance(picture: HostPicture, policy: EscalationPolicy, now: float) -> tuple[HealthEvent, ...]:
    """The failures of the last hour, but those of the last maintenance window."""
    found = failures_since(picture.events, now - policy.window_s, now)
    window = (picture.record or NO_RECOVERY)["maintenance"]
    if window is None:
        return found
    return tuple(event for event in found if not window["begun_at"] <= event.at < window["until"])


def outlook_of(picture: HostPicture, around: Circumstances) -> HostOutlook:
    """What is to be done about one host, now and next."""
    policy, now = around.policy, around.now
    record = picture.record or NO_RECOVERY
    failures = counted(picture, policy, now)
    # Those before a release too: who is well for a minute each time flaps all the same.
    lately = _outside_maintenance(picture, policy, now)
    flaps = damping((event.at for event in lately if event.is_flap), policy.half_life_s, now)
    count = len(failures)
    if record["level"] and picture.away and record["actions"]:
        # Of a host that is not heard of only this leader counts, who may be new.
        count = max(count, record["actions"][-1]["failures"])
    window = maintained(record, now)
    base = HostOutlook(count, flaps, record["level"], window)
    if record["open"]:
        return _under_way(base, picture, record)
    if window is not None:
        return _with(base, held_back=f"maintenance until {window['until']:.0f}")
    if picture.expected_away:
        return _with(base, held_back="it has said that it restarts")
    if _recovered(picture, failures, policy, now):
        return _release(base, picture, record)
    possible = _possible(picture, around)
    action = next_step(policy, record["level"], count, possible)
    if not action or (not picture.faulty and action in (NODE_RESTART, CLUSTER_REBALANCE)):
        following, more = step_after(policy, record["level"], count, possible)
        return _with(base, next_action=following, more_failures=more)
    last = record["actions"][-1] if record["actions"] else None
    if last is not None and last["action"] != RELEASE:
        ready_at = (last["ended_at"] or last["at"]) + PATIENCE_S[last["action"]]
        fresh = any(event.at > last["at"] for event in failures)
        if now < ready_at:
            held = f"{last['action']} is given time to help"
            return _with(base, next_action=action, next_at=ready_at, held_back=held)
        if not fresh:
            return _with(base, next_action=action, held_back=f"nothing has failed since {last['action']}")
    blown = around.fuse.blown(is_engaged(picture, now))
    if blown:
        return _with(base, next_action=action, held_back=blown)
    return _with(
        base, next_action=action, next_at=now, decision=_act(picture, record, action, failures, count, possible)
    )


def _under_way(base: HostOutlook, picture: HostPicture, record: HostRecoveryRecord) -> HostOutlook:
    action = next((each for each in record["actions"] if each["number"] == record["open"]), None)
    held = "" if action is None else f"{action['action']} is under way"
    given_up = GiveUp(picture.host_id, record["open"])
    return _with(base, held_back=held, decision=None if picture.carried_out_here else given_up)


def _recovered(picture: HostPicture, failures: tuple[HealthEvent, ...], policy: EscalationPolicy, now: float) -> bool:
    """Whether nothing failed for long enough; whether that is believed is for damping."""
    if picture.failed or picture.away or picture.lost:
        return False
    return all(now - event.at >= policy.recovered_s for event in failures)


def _release(base: HostOutlook, picture: HostPicture, record: HostRecoveryRecord) -> HostOutlook:
    if not record["level"]:
        return base
    if base.damping.suppressed:
        return _with(
            base,
            next_action=RELEASE,
            next_at=None,
            held_back=f"it has flapped {base.damping.flaps} times: for {base.damping.reuse_in_s:.0f} s more it is not"
            " taken for recovered",
        )
    evidence: dict[str, float | str] = {"penalty": round(base.damping.penalty, 1), "failures": float(base.failures)}
    act = Act(picture.host_id, record["number"] + 1, RELEASE, "nothing fails there any more", evidence, base.failures)
    return _with(base, next_action=RELEASE, decision=act)


def _possible(picture: HostPicture, around: Circumstances) -> Possible:
    silent = sorted(result.subject for result in picture.failed if result.kind == SERVER and result.subject)
    there = not picture.lost and not picture.away
    return Possible(
        silent[0] if silent and there and PROCESS_RESTART in around.actions else "",
        there and around.serving > (0 if picture.faulty else 1) and ESCALATION[1] in around.actions,
        NODE_RESTART in around.actions,
        around.serving > 0 and around.hosts > 1 and CLUSTER_REBALANCE in around.actions,
    )


def _act(
    picture: HostPicture,
    record: HostRecoveryRecord,
    action: str,
    failures: tuple[HealthEvent, ...],
    count: int,
    possible: Possible,
) -> Act:
    server = possible.restart_server if action == PROCESS_RESTART else ""
    failed = picture.failed
    about = next((each for each in failed if each.name == f"{SERVER}:{server}"), failed[0] if failed else None)
    evidence: dict[str, float | str] = {"failures": float(count)}
    if about is not None:
        reason = about.reason or f"{about.name} has failed"
        evidence = {**evidence, "check": about.name, **about.evidence}
    elif failures:
        reason = f"it keeps failing, last: {failures[-1].reason or failures[-1].check}"
        evidence = {**evidence, "check": failures[-1].check}
    else:
        reason = "it keeps failing"
    if server:
        evidence["server"] = server
    return Act(picture.host_id, record["number"] + 1, action, reason, evidence, count, server)


def _last_at(record: HostRecoveryRecord) -> float:
    last: RecoveryRecord | None = record["actions"][-1] if record["actions"] else None
    return 0.0 if last is None else last["ended_at"] or last["at"]


def _with(
    base: HostOutlook,
    *,
    next_action: str = "",
    next_at: float | None = None,
    more_failures: int = 0,
    held_back: str = "",
    decision: Decision | None = None,
) -> HostOutlook:
    return HostOutlook(
        base.failures,
        base.damping,
        base.level,
        base.maintenance,
        next_action,
        next_at,
        more_failures,
        held_back,
        decision,
    )
