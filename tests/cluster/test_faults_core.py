"""What is done about hosts in trouble: step by step, never under maintenance, never to many at once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorgrid.actors.cluster.faults.check_results import CheckResult, CheckStatus, results_of
from actorgrid.actors.cluster.faults.core import Act, GiveUp, HostPicture, decide, is_engaged
from actorgrid.actors.cluster.faults.escalation import EscalationPolicy
from actorgrid.actors.cluster.faults.failure_history import FailureHistory, events_of
from actorgrid.actors.cluster.faults.flap_damping import CUT_OFF, FLAP_PENALTY, REUSE, ceiling, damping
from actorgrid.actors.cluster.faults.fuse import Fuse
from actorgrid.actors.ledger.commands import BeginRecovery, EndRecovery, NewTerm, RegisterHost, SetMaintenance
from actorgrid.actors.ledger.recovery_records import ESCALATION, RELEASE, maintained
from actorgrid.actors.ledger.state import Ledger
from tests.consensus.rig import host_record

POLICY = EscalationPolicy()
STEP_S = 5.0
BEGIN = 1_000_000.0


@dataclass
class Town:
    """Hosts whose faults are scripted, a real ledger, and a leader that carries out what the core decides."""

    hosts: int = 5
    now: float = BEGIN
    faults: dict[str, str] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)
    transcript: list[tuple[float, str, str]] = field(default_factory=list)
    carrying: set[str] = field(default_factory=set)
    done_by_host: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ledger = Ledger()
        self.do(NewTerm(1, at=self.now))
        self.names = [f"h{number}" for number in range(self.hosts)]
        for name in self.names:
            self.do(RegisterHost(host_record(name), at=self.now))
        self.histories = {name: FailureHistory(30.0) for name in self.names}
        self.outlooks: dict[str, Any] = {}

    def do(self, command: Any) -> Any:
        outcome = self.ledger.apply(self.ledger.index + 1, command)
        if outcome.error is not None:
            raise outcome.error
        return outcome.result

    def lead_anew(self) -> None:
        self.do(NewTerm(self.ledger.term + 1, at=self.now))
        self.carrying.clear()

    def picture(self, name: str) -> HostPicture:
        check = self.faults.get(name, "")
        failed = CheckResult(check, CheckStatus.FAILED, f"{check} fails", {"silent_s": 7.0})
        results = (CheckResult("clock", CheckStatus.OK), *((failed,) if check else ()))
        taken = self.histories[name].take(results, self.now)
        record = self.ledger.recoveries.get(name)
        return HostPicture(
            name,
            name,
            taken,
            tuple(self.histories[name].events),
            record,
            away=name in self.away,
            carried_out_here=name in self.carrying,
        )

    def step(self, *, crash: bool = False) -> list[Any]:
        self.now += STEP_S
        pictures = [self.picture(name) for name in self.names]
        decisions, self.outlooks = decide(pictures, POLICY, self.now)
        for each in decisions:
            if isinstance(each, GiveUp):
                self.do(EndRecovery(each.host_id, each.number, "unknown", "", self.ledger.term, at=self.now))
                continue
            self.do(
                BeginRecovery(
                    each.host_id,
                    each.number,
                    each.action,
                    "s",
                    each.reason,
                    each.evidence,
                    each.failures,
                    self.ledger.term,
                    at=self.now,
                )
            )
            self.transcript.append((self.now - BEGIN, each.host_id, each.action))
            self.done_by_host.setdefault(each.host_id, []).append(each.action)
            if crash:
                self.carrying.add(each.host_id)
            else:
                self.do(EndRecovery(each.host_id, each.number, "done", "", self.ledger.term, at=self.now))
        return decisions

    def run(self, for_s: float) -> None:
        for _ in range(int(for_s / STEP_S)):
            self.step()


def test_a_server_that_stays_silent_goes_through_all_steps_in_the_order_of_the_thresholds() -> None:
    town = Town(faults={"h1": "server:gateway"})
    town.run(900)
    assert [(action, at) for at, _, action in town.transcript] == [
        ("process_restart", 5.0),
        ("process_restart", 35.0),
        ("work_redistribution", 65.0),
        ("node_restart", 155.0),
        ("cluster_rebalance", 455.0),
    ]
    record = town.ledger.recoveries["h1"]
    assert record["actions"][0]["evidence"]["server"] == "gateway" and record["actions"][2]["failures"] == 3
    assert town.outlooks["h1"].next_action == "", "nothing is left; a person has to look"


def test_trouble_that_is_no_servers_restarts_no_server() -> None:
    town = Town(faults={"h1": "disk"})
    town.run(100)
    assert [action for _, _, action in town.transcript] == ["work_redistribution"]


def test_one_failure_that_passes_is_released_after_a_minute_without_any() -> None:
    town = Town(faults={"h1": "server:gateway"})
    town.run(10)
    town.faults.clear()
    town.run(50)
    assert town.outlooks["h1"].level == 1
    town.run(20)
    assert [action for _, _, action in town.transcript] == ["process_restart", RELEASE]
    assert town.ledger.recoveries["h1"]["level"] == 0
    town.run(600)
    assert len(town.transcript) == 2


def test_a_host_that_flaps_is_held_back_until_its_penalty_has_decayed() -> None:
    town = Town()
    for _ in range(4):
        town.faults["h1"] = "server:gateway"
        town.run(10)
        town.faults.clear()
        town.run(20)
    assert town.ledger.recoveries["h1"]["level"] == 2, "moved away although it looks well each time"
    assert town.outlooks["h1"].damping.suppressed
    town.run(120)
    assert town.outlooks["h1"].next_action == RELEASE and "flapped 4 times" in town.outlooks["h1"].held_back
    town.run(3600)
    assert town.transcript[-1][2] == RELEASE
    assert town.transcript[-1][0] > 1500


def test_a_host_that_is_well_for_a_while_each_time_is_held_back_all_the_same() -> None:
    town = Town()
    for _ in range(4):
        town.faults["h1"] = "server:gateway"
        town.run(10)
        town.faults.clear()
        town.run(80)
    assert [action for _, _, action in town.transcript].count(RELEASE) == 2, "after the third it is not believed"
    assert town.outlooks["h1"].damping.suppressed and town.ledger.recoveries["h1"]["level"] >= 1


def test_failures_of_a_maintenance_window_never_count() -> None:
    town = Town(faults={"h1": "server:gateway"})
    town.do(SetMaintenance("h1", town.now + 600, "fans", "ann", at=town.now))
    town.run(600 - STEP_S)
    assert town.transcript == [] and "maintenance" in town.outlooks["h1"].held_back
    town.faults.clear()
    town.run(300)
    assert town.transcript == []


def test_what_a_leader_left_open_is_given_up_by_the_next_and_not_done_again() -> None:
    town = Town(faults={"h1": "disk"})
    town.run(150)
    assert town.ledger.recoveries["h1"]["level"] == 2
    while not any(isinstance(each, Act) for each in town.step(crash=True)):
        pass
    assert town.done_by_host["h1"] == ["work_redistribution", "node_restart"]
    town.step()
    assert "under way" in town.outlooks["h1"].held_back
    town.lead_anew()
    town.step()
    record = town.ledger.recoveries["h1"]
    assert (record["actions"][-1]["outcome"], record["open"]) == ("unknown", 0)
    town.run(280)
    assert town.done_by_host["h1"] == ["work_redistribution", "node_restart"], "it has time to help"
    town.run(200)
    assert town.done_by_host["h1"][2:] == ["cluster_rebalance"]


def test_when_most_hosts_look_faulty_none_is_touched() -> None:
    town = Town(hosts=5, faults=dict.fromkeys(("h0", "h1", "h2"), "network"))
    town.run(1000)
    assert town.transcript == [] and "the network or all of them" in town.outlooks["h0"].held_back


def test_hosts_that_are_worked_on_blow_no_fuse() -> None:
    town = Town(hosts=3, faults={"h1": "disk", "h2": "disk"})
    town.do(SetMaintenance("h1", town.now + 3600, "fans", "ann", at=town.now))
    town.run(100)
    assert {host for _, host, _ in town.transcript} == {"h2"}


def test_of_two_hosts_the_one_that_failed_more_is_dealt_with_and_the_other_waits() -> None:
    town = Town(hosts=10, faults={"h7": "disk"})
    town.run(30)
    town.faults["h3"] = "disk"
    town.run(150)
    assert {host for _, host, _ in town.transcript} == {"h7"}
    assert "at most 1 at once" in town.outlooks["h3"].held_back


def test_slow_hosts_whose_checks_are_degraded_are_left_alone() -> None:
    town = Town(hosts=20)
    slow = CheckResult("processor", CheckStatus.DEGRADED, "starved", {"some_percent": 97.0})
    for name in ("h3", "h9"):
        town.histories[name].take((slow,), town.now)
    pictures = [replace(town.picture(name), results=(slow,)) for name in town.names]
    for _ in range(500):
        town.now += STEP_S
        decisions, _ = decide(pictures, POLICY, town.now)
        assert decisions == []


def test_a_host_that_restarts_as_it_said_is_left_alone() -> None:
    picture = HostPicture("a", "a", (CheckResult("reachable", CheckStatus.FAILED),), (), None, away=True)
    assert not replace(picture, expected_away=True).faulty
    (outlook,) = decide([replace(picture, expected_away=True)], POLICY, BEGIN)[1].values()
    assert outlook.held_back == "it has said that it restarts"


# -- properties

CHECKS = ("", "server:gateway", "server:links", "disk", "network")
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["fault", "well", "maintain", "end", "lead", "run", "crash"]),
        st.integers(0, 11),
        st.sampled_from(CHECKS[1:]),
        st.integers(1, 40),
    ),
    max_size=30,
)


@settings(max_examples=150, deadline=None)
@given(EVENTS, st.integers(1, 12))
def test_whatever_happens_the_promises_hold(script: list[tuple[str, int, str, int]], hosts: int) -> None:
    town = Town(hosts=hosts)
    for what, number, check, steps in script:
        name = f"h{number % hosts}"
        if what == "fault":
            town.faults[name] = check
        elif what == "well":
            town.faults.pop(name, None)
        elif what == "maintain":
            town.do(SetMaintenance(name, town.now + 200, "", "ann", at=town.now))
        elif what == "end":
            town.do(SetMaintenance(name, None, at=town.now))
        elif what == "lead":
            town.lead_anew()
        for _ in range(steps if what == "run" else 1):
            before = {host: (record["level"] if record else 0) for host, record in _records(town)}
            engaged = {host for host in town.names if is_engaged(town.picture(host), town.now)}
            # The ledger refuses (and do raises) an action under maintenance, or one that is not the next.
            begun = [each for each in town.step(crash=what == "crash") if isinstance(each, Act)]
            judged = [host for host in town.names if maintained(town.ledger.recoveries.get(host), town.now) is None]
            faulty = sum(town.picture(host).faulty for host in judged)
            acted = [each for each in begun if each.action != RELEASE]
            fuse = Fuse(hosts, faulty, 0)
            assert len(engaged | {each.host_id for each in acted}) <= max(fuse.at_once_max, len(engaged))
            if len(judged) >= 3 and 2 * faulty > len(judged):
                assert acted == []
            for each in acted:
                assert maintained(town.ledger.recoveries[each.host_id], town.now) is None
                level = ESCALATION.index(each.action) + 1
                assert level > before[each.host_id] or level == before[each.host_id] == 1
                assert each.failures >= POLICY.threshold(each.action)


def _records(town: Town) -> list[tuple[str, Any]]:
    return [(host, town.ledger.recoveries.get(host)) for host in town.names]


TIMES = st.lists(st.floats(0, 1e5), max_size=40)


@given(TIMES, st.floats(10, 1e4), st.floats(0, 2e5))
def test_a_penalty_is_bounded_and_every_host_is_released_in_time(
    flaps: list[float], half_life_s: float, now: float
) -> None:
    found = damping(flaps, half_life_s, now)
    assert 0 <= found.penalty <= ceiling()
    assert found.reuse_in_s <= 4 * half_life_s * (1 + 1e-9)
    later = damping([at for at in flaps if at <= now], half_life_s, now + found.reuse_in_s * (1 + 1e-6) + 1e-6)
    assert not later.suppressed


def test_the_third_flap_in_a_row_suppresses_and_a_few_checks_at_once_are_one() -> None:
    assert not damping([0, 100], 900, 100).suppressed
    three = damping([0, 60, 120], 900, 120)
    assert three.suppressed and CUT_OFF < three.penalty < 3 * FLAP_PENALTY
    assert damping([0, 1, 2, 3], 900, 3) == damping([0], 900, 3)
    assert not damping([0, 60, 120], 900, 120 + three.reuse_in_s + 1).suppressed
    assert damping([0], 900, 900).penalty == pytest.approx(FLAP_PENALTY / 2) and REUSE > FLAP_PENALTY / 2


# -- histories


def test_a_history_counts_beginnings_and_each_half_minute_and_outlives_its_server() -> None:
    history = FailureHistory(30.0)
    fails, well = CheckResult("disk", CheckStatus.FAILED, "EIO"), CheckResult("disk", CheckStatus.OK)
    for at in range(0, 100, 10):
        (taken,) = history.take((fails,), BEGIN + at)
        assert taken.since == BEGIN
    history.take((well,), BEGIN + 100)
    again = FailureHistory(30.0, events_of(history.to_plain()))
    assert [(event.at - BEGIN, event.word) for event in again.events] == [
        (0, "failed"),
        (30, "still_failed"),
        (60, "still_failed"),
        (90, "still_failed"),
        (100, "ok"),
    ]


def test_a_clock_that_is_set_back_stops_no_counting_and_a_long_history_is_cut() -> None:
    history = FailureHistory(30.0)
    fails = CheckResult("disk", CheckStatus.FAILED)
    history.take((fails,), BEGIN)
    for at in range(0, 100, 10):
        history.take((fails,), BEGIN - 5000 + at)
    assert sum(event.word == "still_failed" for event in history.events) == 3
    for at in range(2000):
        status = CheckStatus.FAILED if at % 2 else CheckStatus.OK
        history.take((CheckResult("disk", status),), BEGIN + at)
    assert len(history.events) == 256


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["name", "status", "at", "check", "word", "reason", "evidence", "since"]), inner
            )
        ),
    )
)
def test_what_another_host_tells_is_taken_without_belief(told: Any) -> None:
    assert len(results_of([told])) <= 1 and len(events_of([told])) <= 1
    results_of(told), events_of(told)


def test_more_than_a_host_can_have_is_cut() -> None:
    many = [{"name": f"c{n}", "status": "ok", "reason": "", "evidence": {}} for n in range(5000)]
    assert len(results_of(many)) == 256
    assert results_of([{"name": "x", "status": "failed", "reason": "y", "evidence": {"a": float("nan"), "b": 1}}])[
        0
    ].evidence == {"b": 1.0}
