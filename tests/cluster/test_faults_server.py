"""FaultDetector with the servers of a host: what it finds, has the ledger keep, does once, and leaves alone."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from actorgrid.actors.cluster.fault_detector import EXPECTED, FaultDetector
from actorgrid.actors.cluster.faults import disk_probe, host_checks, host_readings, recovery
from actorgrid.actors.cluster.faults.check_results import CheckResult, CheckStatus
from actorgrid.actors.cluster.faults.checks import PressureReading
from actorgrid.actors.cluster.faults.strategies import BUILT_IN, RecoveryEnd, RecoveryStrategy, find_strategy
from actorgrid.actors.cluster.messages import FaultReport, HealthReport, ListFaults, WhyHost
from actorgrid.actors.host.messages import RestartServer
from actorgrid.errors import NotFound, UnknownSetting
from actorgrid.supervisors.envelope import CAST, Beat, Envelope
from actorgrid.supervisors.server import Server, handles
from tests.cluster.rig import Rig
from tests.processes import until


class Host(Server):
    """Stands for the host's supervisor: its processes are not the subject. ``restarted``: what it was asked for."""

    name = "host"

    def start(self) -> None:
        self.restarted: list[str] = []

    @handles(RestartServer)
    def _restart(self, request: RestartServer) -> int:
        self.restarted.append(request.server)
        return 4711


@pytest.fixture
def town(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The rig with a FaultDetector, on whose clock the walls' clocks go."""
    began, offset = time.time(), rig.node.now_s
    for module in (host_checks, host_readings, recovery):
        monkeypatch.setattr(module, "time", lambda: began + rig.node.now_s - offset)
    monkeypatch.setattr("actorgrid.actors.cluster.health_watch.time", lambda: began + rig.node.now_s - offset)
    monkeypatch.setattr("actorgrid.actors.cluster.fault_detector.time", lambda: began + rig.node.now_s - offset)
    # A busy machine's own disk and memory are not the subject.
    monkeypatch.setattr(host_checks, "read_pressure", lambda: PressureReading(2**34, 0.0, 0.0, 0.0))
    monkeypatch.setattr("actorgrid.actors.cluster.faults.checks.SLOW_DISK_S", 1e6)
    rig.host.settings.faults.interval_s = 2.0
    rig.add(Host)
    rig.add(FaultDetector)
    return rig


def beating(rig: Rig, for_s: float, *but: str) -> None:
    """Let so much time pass, with the beats of all servers but some."""
    for _ in range(int(for_s)):
        for name in EXPECTED:
            if name not in (*but, "fault_detector"):
                rig.node.send("fault_detector", Envelope(CAST, name, None, Beat(name, 1, 0)))
        rig.node.settle()
        rig.node.advance(1.0)


def record(rig: Rig) -> Any:
    return rig.node.servers["fault_detector"]._ledger.recoveries.get(rig.host.host_id)


def why(rig: Rig) -> dict[str, Any]:
    answer: dict[str, Any] = rig.node.request("fault_detector", WhyHost(rig.host.host_id))
    return answer


def test_how_far_off_its_clock_is_is_told_where_others_say_so(town: Rig) -> None:
    detector: Any = town.node.servers["fault_detector"]
    beating(town, 5)
    assert "disk_free_ratio" in detector._own_figures() and "clock_offset_seconds" not in detector._own_figures()
    detector._checks.results = (CheckResult("clock", CheckStatus.OK, "", {"offset_s": -0.2, "peers": 2.0}),)
    assert detector._own_figures()["clock_offset_seconds"] == -0.2


def test_a_server_that_falls_silent_is_restarted_once_and_the_ledger_says_why(town: Rig) -> None:
    beating(town, 10)
    assert record(town) is None and why(town)["condition"] == "healthy"
    beating(town, 20, "gateway")
    (action,) = record(town)["actions"]
    assert town.node.servers["host"].restarted == ["gateway"]
    assert (action["action"], action["strategy"], action["outcome"]) == ("process_restart", "supervisor", "done")
    assert action["reason"].startswith("gateway is silent for") and action["evidence"]["server"] == "gateway"
    assert action["evidence"]["silent_s"] > 5 and "4711" in action["found"]
    answer = why(town)
    assert answer["condition"] == "failed" and answer["headline"].startswith("gateway is silent")
    assert answer["checks"][0]["name"] == "server:gateway" and answer["actions"][0]["number"] == 1
    assert any("actorgrid inspect" in hint for hint in answer["try"])
    faults = town.node.request("fault_detector", ListFaults())["faults"]
    assert {"action", "check"} <= {row["kind"] for row in faults}
    assert faults == sorted(faults, key=lambda row: -row["at"])


def test_when_it_is_well_for_a_minute_it_is_released(town: Rig) -> None:
    beating(town, 5)
    beating(town, 12, "gateway")
    assert record(town)["level"] == 1
    beating(town, 80)
    assert record(town)["level"] == 0 and record(town)["actions"][-1]["action"] == "release"
    assert why(town)["condition"] == "healthy"


def test_under_maintenance_nothing_is_done_and_afterwards_nothing_of_it_counts(town: Rig) -> None:
    beating(town, 5)
    at = recovery.time()
    fields = {"host": town.host.host_id, "until": at + 100.0, "reason": "new fans", "by": "ann"}
    town.propose("set_maintenance", v=4, at=at, **fields)
    beating(town, 60, "gateway")
    assert record(town)["actions"] == [] and town.node.servers["host"].restarted == []
    answer = why(town)
    assert answer["condition"] == "maintenance" and answer["maintenance"]["reason"] == "new fans"
    assert answer["next"]["held_back"].startswith("maintenance until")
    findings = {
        each["name"]: each for each in town.node.request("fault_detector", HealthReport())["cluster"]["problems"]
    }
    assert findings["hosts_maintained"]["level"] == "note"
    detector = town.node.servers["fault_detector"]
    assert detector.metrics()["hosts_in_maintenance"] == 1 and detector.metrics()["checks_failed"] == 1
    beating(town, 60)
    assert record(town)["actions"] == [] and why(town)["failures"] == 0


def test_what_failed_is_known_to_the_server_that_comes_after_it(town: Rig) -> None:
    beating(town, 5)
    beating(town, 12, "gateway")
    before = town.node.request("fault_detector", FaultReport())["events"]
    assert [event["word"] for event in before] == ["failed"]
    path = Path(town.host.paths.data_dir) / "health_history.json"

    def saved() -> bool:
        beating(town, 1, "gateway")
        return path.exists() and json.loads(path.read_text())["events"][:1] == before

    until(saved, "a thread has written it")
    town.node.servers.pop("fault_detector")
    town.add(FaultDetector)
    assert town.node.request("fault_detector", FaultReport())["events"][:1] == before
    path.write_text("{no json")
    town.node.servers.pop("fault_detector")
    town.add(FaultDetector)
    assert town.node.request("fault_detector", FaultReport())["events"] == []


def test_an_action_that_its_server_did_not_end_is_given_up_and_not_repeated(town: Rig) -> None:
    beating(town, 5)
    fields = {"host": town.host.host_id, "number": 1, "action": "node_restart", "strategy": "command", "reason": "r"}
    term = town.node.servers["fault_detector"]._ledger.term
    town.propose("begin_recovery", v=4, **fields, evidence={}, failures=6, term=term)
    beating(town, 10)
    done = [(each["action"], each["outcome"]) for each in record(town)["actions"]]
    assert done == [("node_restart", "unknown"), ("release", "done")], "nothing failed, so nothing is done again"


def test_a_disk_that_refuses_writes_is_a_failure_that_moves_its_work_nowhere_when_alone(
    town: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(_probe: object) -> float:
        raise OSError(5, "Input/output error")

    beating(town, 5)
    monkeypatch.setattr(disk_probe.DiskProbe, "_write", refuses)
    until(lambda: beating(town, 2) or why(town)["condition"] == "failed", "a thread has found it")
    assert "EIO" in why(town)["headline"]
    beating(town, 250)
    assert [each["action"] for each in record(town)["actions"]] == ["node_restart"]
    (action,) = record(town)["actions"]
    assert action["outcome"] == "dry_run" and "would have done node_restart" in action["found"]


@pytest.mark.parametrize(
    ("argv", "outcome", "word"),
    [
        (["sh", "-c", "echo {host_id} >> {file}; echo turned off"], "done", "turned off"),
        (["sh", "-c", "echo no power >&2; exit 3"], "failed", "status 3: no power"),
        (["/no/such/tool"], "failed", "cannot be started"),
        (["sleep", "1000"], "failed", "not back in time"),
        ([], "failed", "faults.command is empty"),
    ],
)
def test_a_command_restarts_the_node_and_how_it_ended_is_kept(
    town: Rig, tmp_path: Path, argv: list[str], outcome: str, word: str
) -> None:
    file = tmp_path / "restarted"
    faults = town.host.settings.faults
    faults.node_restart, faults.action_timeout_s = "command", 2.0 if "1000" in argv else 600.0
    faults.command = [part.replace("{file}", str(file)) for part in argv]
    end = acted(town)
    assert end["outcome"] == outcome and word in end["found"]
    if outcome == "done":
        assert file.read_text().split() == [town.host.host_id]


def test_ipmi_cycles_the_power_by_the_machines_controller(
    town: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "ipmitool"
    tool.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/asked\necho Chassis Power Control: Cycle\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    faults = town.host.settings.faults
    faults.node_restart, faults.ipmi_address = "ipmi", "{host_id}.bmc"
    faults.ipmi_user, faults.ipmi_password_file = "root", "/etc/bmc"
    assert acted(town)["found"] == "ipmitool ended well: Chassis Power Control: Cycle"
    at = f"{town.host.host_id}.bmc"
    login = ["-I", "lanplus", "-H", at, "-U", "root", "-f", "/etc/bmc"]
    assert (tmp_path / "asked").read_text().split() == [*login, "chassis", "power", "cycle"]
    monkeypatch.setenv("PATH", "/nowhere")
    assert "cannot be started" in acted(town, 2)["found"]


class Cloud(BaseHTTPRequestHandler):
    """A cloud that restarts machines: keeps what it was asked, and answers as its path says."""

    asked: ClassVar[list[tuple[str, str | None, dict[str, Any]]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((self.path, self.headers["Authorization"], body))
        self.send_response(int(self.path.rpartition("/")[2]))
        self.send_header("Location", "/elsewhere/200")
        self.end_headers()
        self.wfile.write(b"as you say")

    do_GET = do_POST

    def log_message(self, *_arguments: Any) -> None:
        pass


def test_an_http_hook_is_asked_once_with_its_token_and_follows_nobody_elsewhere(town: Rig, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("sesame\n")
    Cloud.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Cloud) as cloud:
        thread = threading.Thread(target=cloud.serve_forever)
        thread.start()
        try:
            faults = town.host.settings.faults
            faults.node_restart, faults.http_token_file = "http", str(tmp_path / "token")
            faults.action_timeout_s = 600.0
            ends = []
            for number, status in enumerate((200, 503, 307), 1):
                faults.http_url = f"http://127.0.0.1:{cloud.server_port}/{{host_id}}/{status}"
                ends.append(acted(town, number))
        finally:
            cloud.shutdown()
            thread.join()
    assert [end["outcome"] for end in ends] == ["done", "failed", "failed"]
    assert ends[0]["found"] == "the POST ended well: 200 as you say"
    host_id = town.host.host_id
    assert [path for path, _, _ in Cloud.asked] == [f"/{host_id}/{status}" for status in (200, 503, 307)]
    _, authorization, body = Cloud.asked[0]
    assert authorization == "Bearer sesame" and (body["id"], body["host_id"]) == (f"{host_id}/1", host_id)


def acted(town: Rig, number: int = 1) -> Any:
    """Have the node restarted, as the *number*-th action; gives the ledger's record of how that ended."""
    detector: Any = town.node.servers["fault_detector"]
    town.host.settings.faults.recovered_s = 86_400.0  # however long it takes, the host is not released meanwhile
    act = recovery.Act(town.host.host_id, number, "node_restart", "r", {}, 6)
    done: list[Any] = []

    async def carry_out() -> None:
        detector._recovery._acting.add(act.host_id)
        await detector._recovery._do(act)
        done.append(record(town)["actions"][-1])

    detector.spawn(carry_out())
    # The process runs by the world's clock, its time limit by the node's.
    until(lambda: town.node.advance(0.1) or done, "the action has ended", within_s=60.0)
    return done[0]


class OfAPackage(RecoveryStrategy):
    """As a package would offer it."""

    name = "magic"

    async def carry_out(self, _act: Any, _means: Any) -> RecoveryEnd:
        return RecoveryEnd("done", "as by magic")


def test_strategies_are_found_by_name_and_packages_add_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {name: type(find_strategy(name)).__name__ for name in BUILT_IN}["ipmi"] == "Ipmi"
    with pytest.raises(UnknownSetting, match="no recovery strategy 'comand'") as caught:
        find_strategy("comand")
    assert caught.value.hint == "did you mean command?"

    class Point:
        name, value = "magic", "somewhere:OfAPackage"

        def load(self) -> type[RecoveryStrategy]:
            return OfAPackage

    monkeypatch.setattr("actorgrid.actors.cluster.faults.strategies.entry_points", lambda group: [Point()])
    assert isinstance(find_strategy("magic"), OfAPackage)


def test_a_packages_strategy_that_crashes_has_failed_and_nothing_more(
    town: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Crashing(RecoveryStrategy):
        async def carry_out(self, _act: Any, _means: Any) -> RecoveryEnd:
            raise ZeroDivisionError("no such power")

    monkeypatch.setattr(recovery, "find_strategy", lambda _name: Crashing())
    town.host.settings.faults.node_restart = "magic"
    assert acted(town)["outcome"] == "failed"
    assert "ZeroDivisionError: no such power" in record(town)["actions"][0]["found"]
    assert why(town)["actions"][0]["outcome"] == "failed", "the detector goes on"


def test_a_host_that_is_none_is_named(town: Rig) -> None:
    with pytest.raises(NotFound, match="no host of the id nobody"):
        town.node.request("fault_detector", WhyHost("nobody"))
