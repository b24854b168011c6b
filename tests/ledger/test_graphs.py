"""The verbs of graphs: what the ledger takes, what it refuses, and what it keeps."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.actors.ledger import commands
from actorgrid.actors.ledger.command import read_command
from actorgrid.actors.ledger.graph_checks import steps_of
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.ledger.tables import graphs
from actorgrid.errors import BadRequest, HostsTooOld, QueueFull, QuotaExceeded, StaleToken, UnknownJob, WrongState
from tests.consensus.rig import AT, host_record, job_record

FILE, BUNDLE = "ab" * 32, "cd" * 32


class Rig:
    def __init__(self) -> None:
        self.ledger = Ledger()
        self.told: list[tuple[str, str, Any]] = []
        self.do(commands.NewTerm(1))
        self.do(commands.RegisterHost(host_record("h1", gpus=0)))

    def do(self, command: Any) -> Any:
        outcome = self.ledger.apply(self.ledger.index + 1, {**command.to_plain(), "at": AT}, "s", self.ledger.index + 1)
        self.told = list(outcome.changes)
        if outcome.error is not None:
            raise outcome.error
        return outcome.result

    def submit(self, graph_id: str = "g", steps: int = 4, **more: Any) -> Any:
        facts = {"files": [FILE, BUNDLE], "steps": steps, "strategy": "time_optimized", "on_failure": "fail_fast"}
        return self.do(
            commands.SubmitGraph({"job_id": graph_id, "user_id": "ann", "priority": 70, "graph": facts, **more})
        )

    def advance(self, graph_id: str = "g", term: int = 1, stop: bool = False, **parts: Any) -> Any:
        lists = [parts.get(name, []) for name in ("releases", "settled", "withdrawn", "extensions")]
        return self.do(commands.AdvanceGraph(graph_id, term, *lists, stop=stop))

    def step(self, number: int, graph_id: str = "g") -> Any:
        return self.ledger.steps.get(graph_id, number)

    def run(self, job_id: str, **end: Any) -> None:
        number = len(self.ledger.jobs[job_id]["attempts"]) + 1
        token = self.do(commands.GrantAttempt(job_id, number, "h1", 1, [], 1))["token"]
        self.do(commands.StartAttempt(f"{job_id}.{number}", token))
        self.do(commands.EndAttempt(f"{job_id}.{number}", token, end.pop("outcome", "succeeded"), **end))


def release(*steps: tuple[int, int], job_id: str = "", graph_id: str = "g", **more: Any) -> dict[str, Any]:
    return {
        "job_id": job_id or f"{graph_id}.{steps[0][0]}-{steps[0][1]}",
        "kind": "function",
        "payload_digest": BUNDLE,
        "resources": {"cpu_milli": 1000},
        "step_of": {"graph_id": graph_id, "steps": [[*step, 0, 33] for step in steps], "inputs": [], "order": 5},
        **more,
    }


def good(count: int = 1) -> list[dict[str, Any]]:
    return [{"ok": True, "offset": 10 * n, "size": 10, "took_s": 0.5} for n in range(count)]


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_graph_is_a_job_that_runs_and_has_no_attempts(rig: Rig) -> None:
    assert rig.submit() == {"job_id": "g", "duplicate": False}
    job = rig.ledger.jobs["g"]
    assert (job["kind"], job["state"], job["attempts"], job["priority"]) == ("graph", "running", [], 70)
    assert job["graph"]["files"] == [FILE, BUNDLE]
    assert rig.ledger.counts["running"] == 1
    assert rig.submit() == {"job_id": "g", "duplicate": True}


def test_a_release_makes_jobs_with_what_the_graph_has(rig: Rig) -> None:
    rig.submit(env={"A": "1"})
    rig.advance(releases=[release((0, 1), env={"B": "2"}, not_before=AT + 5), release((1, 1), (2, 1))])
    job = rig.ledger.jobs["g.0-1"]
    assert (job["user_id"], job["priority"], job["env"]) == ("ann", 70, {"A": "1", "B": "2"})
    assert (job["not_before"], job["state"]) == (AT + 5, "queued")
    assert [rig.step(n)["state"] for n in range(4)] == ["released", "released", "released", "waiting"]
    told = {kind: record for kind, _, record in rig.told}
    assert [number for number, _ in told["steps"]] == [0, 1, 2]


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"releases": [release((0, 2))]}, "not to be released"),
        ({"releases": [release((4, 1))]}, "not to be released"),
        ({"releases": [release((0, 1)), release((0, 1), job_id="g.x")]}, "not to be released"),
        ({"releases": [release((0, 1), graph_id="other", job_id="g.0-1")]}, "another graph"),
        ({"releases": [release((0, 1), job_id="taken")]}, "a job taken already"),
        ({"settled": [{"step": 9, "state": "skipped"}]}, "settle it"),
        ({"withdrawn": ["taken"]}, "runs nothing of graph"),
        ({"extensions": [{"parent": 0, "first": 3, "steps": 1, "file": FILE, "files": []}]}, "another number of steps"),
    ],
)
def test_what_was_decided_from_another_state_is_refused_whole(rig: Rig, parts: dict[str, Any], words: str) -> None:
    rig.do(commands.SubmitJobs([job_record("taken")]))
    rig.submit()
    before = rig.ledger.digest()
    with pytest.raises(WrongState, match=words):
        rig.advance(**parts)
    assert rig.ledger.digest()["step" if "step" in before else "job"] == before["job"]
    assert rig.step(0)["run"] == 0


def test_what_another_leader_decided_is_refused(rig: Rig) -> None:
    rig.submit()
    rig.do(commands.NewTerm(2))
    with pytest.raises(StaleToken):
        rig.advance(term=1, releases=[release((0, 1))])
    with pytest.raises(StaleToken):
        rig.do(commands.EndGraph("g", 1, "succeeded"))


def test_the_end_of_a_job_decides_its_steps_in_the_same_entry(rig: Rig) -> None:
    rig.submit()
    rig.advance(releases=[release((0, 1), (1, 1), (2, 1))])
    rig.run("g.0-1", results=[*good(2), {"ok": False, "offset": 20, "size": 9, "took_s": 0.1}], outcome="failed")
    assert [rig.step(n)["state"] for n in range(3)] == ["succeeded", "succeeded", "stumbled"]
    assert (rig.step(1)["attempt_id"], rig.step(1)["offset"], rig.step(1)["size"]) == ("g.0-1.1", 10, 10)
    assert (rig.step(2)["failures"], rig.step(2)["alone"]) == (1, True)
    assert rig.ledger.jobs["g.0-1"]["attempts"][0]["results"][0]["size"] == 10


def test_steps_behind_the_last_result_wait_again(rig: Rig) -> None:
    rig.submit()
    rig.advance(releases=[release((0, 1), (1, 1))])
    rig.run("g.0-1", results=good(1))
    assert (rig.step(0)["state"], rig.step(1)["state"], rig.step(1)["run"]) == ("succeeded", "waiting", 1)
    assert "alone" not in rig.step(1)


def test_of_several_whose_process_was_lost_each_waits_to_run_alone(rig: Rig) -> None:
    rig.submit()
    rig.advance(releases=[release((0, 1), (1, 1))])
    rig.run("g.0-1", outcome="failed")
    assert [rig.step(n)["state"] for n in range(2)] == ["waiting", "waiting"]
    assert all(rig.step(n)["alone"] and rig.step(n)["failures"] == 0 for n in range(2))
    rig.advance(releases=[release((0, 2))])
    rig.run("g.0-2", outcome="failed")
    assert (rig.step(0)["state"], rig.step(0)["failures"]) == ("failed", 1)


def test_a_job_of_an_earlier_run_decides_nothing(rig: Rig) -> None:
    rig.submit()
    rig.advance(releases=[release((0, 1))])
    token = rig.do(commands.GrantAttempt("g.0-1", 1, "h1", 1, [], 1))["token"]
    seen = rig.ledger.hosts["h1"].get("seen_index", 0)
    rig.do(commands.LoseHost("h1", 1, seen, AT, [["g.0-1.1", token]], 1))
    rig.do(commands.CancelJob("g.0-1"))
    assert rig.step(0)["state"] == "waiting"
    rig.advance(releases=[release((0, 2))])
    rig.do(commands.TakeSuccess("g.0-1.1", token, results=good()))
    assert (rig.step(0)["state"], rig.step(0)["run"]) == ("released", 2)


def test_a_late_success_is_the_steps_while_its_job_waits(rig: Rig) -> None:
    rig.submit()
    rig.advance(releases=[release((0, 1))])
    token = rig.do(commands.GrantAttempt("g.0-1", 1, "h1", 1, [], 1))["token"]
    rig.do(commands.StartAttempt("g.0-1.1", token))
    seen = rig.ledger.hosts["h1"].get("seen_index", 0)
    rig.do(commands.LoseHost("h1", 1, seen, AT, [["g.0-1.1", token]], 1))
    assert rig.step(0)["state"] == "released"
    rig.do(commands.TakeSuccess("g.0-1.1", token, results=good()))
    assert (rig.step(0)["state"], rig.step(0)["attempt_id"], rig.step(0)["size"]) == ("succeeded", "g.0-1.1", 10)


def test_a_command_has_no_results_and_has_succeeded(rig: Rig) -> None:
    rig.submit()
    rig.advance(releases=[release((0, 1), kind="command", command=["true"], payload_digest=None)])
    rig.run("g.0-1")
    assert (rig.step(0)["state"], rig.step(0)["size"]) == ("succeeded", 0)


def test_what_waited_for_a_job_that_failed_has_not_failed_itself(rig: Rig) -> None:
    rig.submit()
    rig.advance(releases=[release((0, 1)), release((1, 1), depends_on=["g.0-1"])])
    rig.run("g.0-1", outcome="failed")
    assert (rig.step(0)["state"], rig.step(1)["state"]) == ("failed", "waiting")


def test_cancelling_a_graph_ends_what_waits_and_asks_the_rest_to_end(rig: Rig) -> None:
    rig.submit()
    rig.advance(releases=[release((0, 1)), release((1, 1))])
    token = rig.do(commands.GrantAttempt("g.0-1", 1, "h1", 1, [], 1))["token"]
    assert rig.do(commands.CancelJob("g")) == {"state": "running", "cancel_requested": True}
    assert rig.ledger.jobs["g.0-1"]["cancel_requested"]
    assert rig.ledger.jobs["g.1-1"]["state"] == "cancelled"
    with pytest.raises(WrongState, match="being stopped"):
        rig.advance(releases=[release((2, 1))])
    with pytest.raises(WrongState, match="1 steps are released"):
        rig.do(commands.EndGraph("g", 1, "cancelled"))
    rig.do(commands.EndAttempt("g.0-1.1", token, "cancelled"))
    assert rig.do(commands.EndGraph("g", 1, "failed")) == {"state": "cancelled"}
    assert rig.ledger.jobs["g"]["error"]["code"] == "TaskCancelled"


def test_jobs_may_wait_for_a_graph(rig: Rig) -> None:
    rig.submit()
    rig.do(commands.SubmitJobs([job_record("behind", depends_on=["g"])]))
    rig.do(
        commands.EndGraph(
            "g", 1, "failed", {"code": "X", "message": "", "asked": "", "found": "", "hint": "", "details": {}}
        )
    )
    assert rig.ledger.jobs["behind"]["error"]["code"] == "DependencyFailed"


def test_a_graph_that_failed_is_begun_again(rig: Rig) -> None:
    rig.submit()
    rig.advance(releases=[release((0, 1)), release((1, 1))], settled=[{"step": 2, "state": "skipped"}])
    rig.run("g.0-1", results=good())
    rig.run("g.1-1", outcome="failed")
    with pytest.raises(WrongState, match="has not ended"):
        rig.do(commands.RetryGraph("g"))
    rig.do(commands.EndGraph("g", 1, "failed"))
    assert rig.do(commands.RetryGraph("g")) == {"state": "running", "again": 2}
    assert [rig.step(n)["state"] for n in range(3)] == ["succeeded", "waiting", "waiting"]
    assert (rig.step(1)["failures"], rig.step(1)["run"]) == (0, 1)
    job = rig.ledger.jobs["g"]
    assert (job["state"], job["error"], job["graph"]["retries"]) == ("running", None, 1)
    rig.advance(releases=[release((1, 2))])


def test_a_merge_has_the_place_of_the_value_that_it_takes(rig: Rig) -> None:
    rig.submit()
    rig.advance(releases=[release((0, 1))])
    rig.run("g.0-1", results=[{**good()[0], "word": 7}])
    rig.advance(settled=[{"step": 1, "state": "succeeded", "same_as": 0}])
    assert {name: rig.step(1)[name] for name in ("attempt_id", "size", "word", "same_as")} == {
        "attempt_id": "g.0-1.1",
        "size": 10,
        "word": 7,
        "same_as": 0,
    }


def test_a_graph_grows(rig: Rig) -> None:
    rig.submit()
    more = {"parent": 0, "first": 4, "steps": 3, "file": "ef" * 32, "files": ["ef" * 32, "12" * 32]}
    rig.advance(extensions=[more], releases=[release((6, 1))])
    facts = rig.ledger.jobs["g"]["graph"]
    assert (facts["steps"], len(facts["files"]), facts["extensions"][0]["file"]) == (7, 4, "ef" * 32)
    assert rig.step(6)["state"] == "released"


def test_withdrawn_jobs_are_released_anew(rig: Rig) -> None:
    rig.submit()
    rig.advance(releases=[release((0, 1))])
    rig.advance(withdrawn=["g.0-1"])
    assert (rig.step(0)["state"], rig.ledger.jobs["g.0-1"]["state"]) == ("waiting", "cancelled")
    rig.advance(releases=[release((0, 2))])


def test_quotas_count_jobs_of_steps(rig: Rig) -> None:
    rig.do(commands.SetQuota("ann", {"cpu_milli": 500, "jobs_waiting": 1}, "me"))
    rig.submit()
    with pytest.raises(QuotaExceeded):
        rig.advance(releases=[release((0, 1))])
    small = {"resources": {"cpu_milli": 100}}
    with pytest.raises(QueueFull):
        rig.advance(releases=[release((0, 1), **small), release((1, 1), **small)])
    assert rig.step(0)["run"] == 0


def test_steps_that_run_nothing_have_no_records_and_hold_no_graph_up(rig: Rig) -> None:
    rig.submit()
    rig.advance(releases=[release((0, 1))])
    rig.run("g.0-1", results=good())
    assert rig.do(commands.EndGraph("g", 1, "succeeded")) == {"state": "succeeded"}


def test_a_snapshot_holds_graphs_and_their_order(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        rig.submit(name)
        rig.advance(name, releases=[release((0, 1), graph_id=name)])
    for name in ("b", "a"):
        rig.run(f"{name}.0-1", results=good())
        rig.advance(name, settled=[{"step": 1, "state": "failed"}])
        with pytest.raises(WrongState, match="has not succeeded"):
            rig.do(commands.EndGraph(name, 1, "succeeded"))
        rig.do(commands.EndGraph(name, 1, "failed"))
    data = rig.ledger.snapshot()
    again = Ledger.restore(data)
    assert again.snapshot() == data
    assert again.digest() == rig.ledger.digest()
    monkeypatch.setattr(graphs, "ENDED_MAX", 1)
    rig.ledger, first = again, rig.ledger
    rig.submit("d")
    assert "b" not in rig.ledger.step_counts
    assert "a" in rig.ledger.step_counts
    assert [job["job_id"] for _, job in rig.ledger._jobs.retire()] == []
    assert rig.ledger.jobs.get("b") is None
    with pytest.raises(WrongState, match="remembered no more"):
        rig.do(commands.RetryGraph("b"))
    assert first.jobs["b"]["state"] == "failed"


def test_as_many_graphs_run_as_may(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "RUNNING_MAX", 2)
    rig.submit("a")
    rig.submit("b")
    with pytest.raises(QueueFull):
        rig.submit("c")
    monkeypatch.setattr(graphs, "RUNNING_MAX", 9)
    monkeypatch.setattr(graphs, "RUNNING_STEPS_MAX", 10)
    with pytest.raises(QueueFull):
        rig.submit("c")
    rig.do(commands.EndGraph("b", 1, "failed"))
    rig.submit("c")
    with pytest.raises(QueueFull):
        rig.do(commands.RetryGraph("b"))
    assert rig.ledger.jobs["b"]["state"] == "failed"


def test_what_is_no_graph_is_refused(rig: Rig) -> None:
    rig.do(commands.SubmitJobs([job_record("plain")]))
    for verb in (commands.RetryGraph("plain"), commands.EndGraph("plain", 1, "failed")):
        with pytest.raises(WrongState, match="is no graph"):
            rig.do(verb)
    with pytest.raises(UnknownJob):
        rig.do(commands.RetryGraph("nothing"))


def test_a_result_of_an_earlier_graph_is_taken_over_as_it_is() -> None:
    rig = Rig()
    rig.submit("old")
    rig.advance("old", releases=[release((0, 1), graph_id="old")])
    result = {"ok": True, "offset": 7, "size": 5, "took_s": 1.0, "word": True, "digest": FILE}
    rig.run("old.0-1", results=[result])
    rig.submit("new")
    rig.do(
        commands.AdvanceGraph(
            "new", 1, [], [{"step": 2, "state": "succeeded", "same_as": 1}], [], [], cached=[[1, "old", 0]]
        )
    )
    found = rig.step(1, "new")
    assert {name: found[name] for name in ("state", "job_id", "offset", "size", "word", "digest", "cached_from")} == {
        "state": "succeeded",
        "job_id": "old.0-1",
        "offset": 7,
        "size": 5,
        "word": True,
        "digest": FILE,
        "cached_from": ["old", 0],
    }
    assert rig.step(2, "new")["attempt_id"] == "old.0-1.1", "a merge of it, in the same entry"
    assert rig.ledger.step_counts["new"]["succeeded"] == 2
    for wrong in ([[1, "old", 0]], [[3, "old", 1]], [[3, "gone", 0]], [[9, "old", 0]], [[3, "new", 0]]):
        with pytest.raises(WrongState):
            rig.do(commands.AdvanceGraph("new", 1, [], [], [], [], cached=wrong))
    with pytest.raises(WrongState, match="take a result over"):
        both = [release((3, 1), graph_id="new")]
        rig.do(commands.AdvanceGraph("new", 1, both, [], [], [], cached=[[3, "old", 0]]))
    assert "cached_from" not in rig.step(3, "new")
    assert "cache" not in rig.ledger.jobs["new"]["graph"]
    facts = {"files": [FILE], "steps": 1, "strategy": "", "on_failure": "continue"}
    rig.do(commands.SubmitGraph({"job_id": "kept", "user_id": "ann", "graph": facts}, cache=True))
    assert rig.ledger.jobs["kept"]["graph"]["cache"] is True


def test_hosts_of_the_version_before_are_not_proposed_it() -> None:
    rig = Rig()
    rig.do(commands.FoundCluster("c1", "h1", {"raft": "1.2.3.4:1"}, "f1"))
    rig.do(commands.ChangeMember("h1", ledger_version=commands.GRAPHS_SINCE - 1))
    from actorgrid.actors.ledger.command import refuse_if_too_new

    with pytest.raises(HostsTooOld):
        refuse_if_too_new(commands.RetryGraph("g"), rig.ledger.members)
    with pytest.raises(BadRequest, match="format version"):
        rig.submit()


@pytest.mark.parametrize(
    "broken",
    [
        {"job_id": "a.b"},
        {"job_id": "g", "graph": 3},
        {"job_id": "g", "graph": {"files": [], "steps": 1, "strategy": "x", "on_failure": "continue"}},
        {"job_id": "g", "graph": {"files": ["x"], "steps": 1, "strategy": "x", "on_failure": "continue"}},
        {"job_id": "g", "graph": {"files": [FILE], "steps": 0, "strategy": "x", "on_failure": "continue"}},
        {"job_id": "g", "graph": {"files": [FILE], "steps": 1, "strategy": "x", "on_failure": "sulk"}},
        {"job_id": "g", "graph": {"files": [FILE], "steps": 1, "strategy": "x", "on_failure": "continue", "more": 1}},
    ],
)
def test_a_malformed_graph_is_refused_by_name(broken: Any) -> None:
    plain = commands.SubmitGraph(broken).to_plain()
    with pytest.raises(BadRequest):
        read_command(plain)


@pytest.mark.parametrize(
    "step_of",
    [
        None,
        {},
        {"graph_id": "g", "steps": [], "inputs": [], "order": 1},
        {"graph_id": "g", "steps": [[0, 1, 0]], "inputs": [], "order": 1},
        {"graph_id": "g", "steps": [[0, 1, 0, 33], [0, 1, 0, 33]], "inputs": [], "order": 1},
        {"graph_id": "g", "steps": [[0, 1, 0, -1]], "inputs": [], "order": 1},
        {"graph_id": "g", "steps": [[0, 1, 0, 33]], "inputs": [1, 1], "order": 1},
        {"graph_id": "g", "steps": [[0, 1, 0, 33]], "inputs": ["x"], "order": 1},
        {"graph_id": "g", "steps": [[10**9, 1, 0, 33]], "inputs": [], "order": 1},
        {"graph_id": "g", "steps": [[0, 1, 0, 33]], "inputs": [], "order": 1, "more": 1},
    ],
)
def test_malformed_steps_of_a_job_are_none(step_of: Any) -> None:
    assert steps_of({"step_of": step_of}) is None
    job = {**release((0, 1)), "step_of": step_of}
    with pytest.raises(BadRequest):
        read_command(commands.AdvanceGraph("g", 1, [job], [], [], []).to_plain())


@pytest.mark.parametrize(
    "results",
    [
        [{"ok": True}],
        [{**good()[0], "offset": -1}],
        [{**good()[0], "word": "x" * 300}],
        [{**good()[0], "word": [1]}],
        [{**good()[0], "digest": "short"}],
        [{**good()[0], "more": 1}],
        good() * 300,
    ],
)
def test_malformed_results_are_refused(results: Any) -> None:
    with pytest.raises(BadRequest):
        read_command(commands.EndAttempt("g.0-1.1", [1, 1], "succeeded", results=results).to_plain())


def of_command(graph_id: str, step: int = 0, **step_of: Any) -> dict[str, Any]:
    made = release((step, 1), graph_id=graph_id, kind="command", command=["true"], outputs=["out"])
    del made["payload_digest"]
    made["step_of"] |= step_of
    return made


def test_outputs_of_an_earlier_graph_are_put_back_by_a_job_of_the_same_user() -> None:
    rig = Rig()
    result = {"ok": True, "offset": 0, "size": 5, "took_s": 1.0, "word": "yes", "digest": FILE}
    rig.submit("old")
    rig.submit("theirs", user_id="bob")
    for graph_id in ("old", "theirs"):
        rig.advance(graph_id, releases=[of_command(graph_id, tells=True)])
        rig.run(f"{graph_id}.0-1", results=[result])
    rig.submit("new")
    for wrong in (["theirs", 0], ["gone", 0], ["old", 3]):
        with pytest.raises(WrongState, match="nothing to put back"):
            rig.advance("new", releases=[of_command("new", puts_back=wrong)])
    rig.advance("new", releases=[of_command("new", puts_back=["old", 0])])
    rig.run("new.0-1", results=[result])
    found = rig.step(0, "new")
    assert (found["state"], found["word"], found["cached_from"]) == ("succeeded", "yes", ["old", 0])
    assert found["attempt_id"] == "new.0-1.1", "it lies where it was put"


@pytest.mark.parametrize("more", [{"puts_back": ["old"]}, {"puts_back": ["old", -1]}, {"tells": 1}, {"says": True}])
def test_what_a_step_cannot_be_asked_is_refused(more: dict[str, Any]) -> None:
    job = of_command("g", **more)
    assert steps_of(job) is None
    with pytest.raises(BadRequest):
        read_command(commands.AdvanceGraph("g", 1, [job], [], [], []).to_plain())


def test_hosts_of_before_are_given_no_graph_that_asks_more_of_commands() -> None:
    facts = {"files": [FILE], "steps": 1, "strategy": "", "on_failure": "continue"}
    asks = commands.SubmitGraph({"job_id": "g", "user_id": "ann", "graph": facts}, asks_commands=True).to_plain()
    assert asks["v"] == 9
    with pytest.raises((BadRequest, HostsTooOld)):
        read_command(asks, {"1": {"ledger_version": 8, "host_id": "x"}})  # type: ignore[arg-type]
