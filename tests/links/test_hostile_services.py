"""What a member may send to the services of another: whatever is in it, an answer or a named error comes of it."""

from __future__ import annotations

import contextlib
from dataclasses import fields as fields_of
from pathlib import Path
from random import Random
from typing import Any

import pytest

from actorgrid.actors.alerts.messages import ListAlerts, ListTuning
from actorgrid.actors.cluster.messages import (
    AcquireWorker,
    CloseSession,
    FaultReport,
    HealthReport,
    HostsAway,
    LeaseEnd,
    LeaveLeases,
    LeaveStep,
    ListFaults,
    MoveWork,
    NoticeStates,
    RenewSession,
    ReturnWorker,
    WhyHost,
)
from actorgrid.actors.gpu.messages import (
    AcquireLease,
    AmdGpus,
    CreateMig,
    DestroyMig,
    MigGpus,
    OwnReadings,
    SetAmdPartition,
)
from actorgrid.actors.host.messages import RestartHost, RestartServer
from actorgrid.actors.links.large_paths import LargePaths
from actorgrid.actors.links.path_bench import PathBench
from actorgrid.actors.links.pieces import pack, unpack, unpack_fields
from actorgrid.actors.links.relays import Relays
from actorgrid.actors.links.services import Services
from actorgrid.actors.membership.messages import Reaches
from actorgrid.actors.serving.messages import GatewayTold, ServiceWanted
from actorgrid.actors.work.messages import (
    AttachLease,
    DetachLease,
    EndAllWork,
    FindChannel,
    FindWorker,
    LeaseOutput,
    ReadWorkUsage,
    ReportObjects,
    StartDelay,
    TellWorkerEnd,
)
from actorgrid.actors.work.usage_rows import OTHERS, empty_row
from actorgrid.errors import ActorGridError, BadRequest
from actorgrid.supervisors.inline import InlineNode
from actorgrid.supervisors.server import Server, handles
from tests.consensus.rig import make_context
from tests.hostile.mutations import ODD, ROUNDS, mutated, nested

CALLS: dict[str, dict[str, Any]] = {
    "output": {"attempt_id": "j.1", "stream": "stdout", "offset": 0, "size": 10, "wait_s": 0.0},
    "result": {"attempt_id": "j.1", "offset": 0, "size": 10},
    "items": {"attempt_id": "j.1", "by": "j.2", "taken": 0, "position": 0, "size": 10, "wait_s": 0.0},
    "output_since": {"attempt_id": "j.1", "stream": "stdout", "since_s": 5.0},
    "output_last": {"attempt_id": "j.1", "stream": "stdout", "first": 0, "end": 10, "count": 3, "pattern": "a"},
    "output_matching": {"attempt_id": "j.1", "stream": "stdout", "offset": 0, "pattern": "a", "wait_s": 0.0},
    "kept_attempts": {"attempts": ["j.1", "../j.1"]},
    "output_files": {"attempt_id": "j.1", "behind": ""},
    "output_file": {"attempt_id": "j.1", "path": "results/a", "offset": 0, "size": 10},
    "blob": {"digest": "ab" * 32, "offset": 0, "size": 10},
    "keep_blobs": {"digests": ["ab" * 32]},
    "health": {},
    "release_secrets": {"attempt_id": "j.1"},
    "hosts_away": {},
    "notice_states": {},
    "start_delay": {"attempt_id": "j.1"},
    "worker_end": {"worker_id": "general-x-1", "lease_id": "l1"},
    "objects": {"limit": 10},
    "lease_output": {"lease_id": "l1", "stream": "stdout", "offset": 0, "limit": 10},
    "readings": {},
    "mig_gpus": {},
    "mig_create": {"gpu": "GPU-1", "profile": "1g.10gb"},
    "mig_destroy": {"instance": "MIG-1"},
    "amd_gpus": {},
    "set_amd_partition": {"gpu": "0000:0c:00", "change": "compute", "mode": "CPX"},
    "acquire_lease": {
        "lease_id": "l1",
        "session_id": "s1",
        "pool": "p",
        "user_id": "ann",
        "wait_s": 0.0,
        "env": {"A": "b"},
        "resources": {"cpu_milli": 100, "gpu_count": 1, "gpu_milli": 500, "gpu_models": ["H100"]},
    },
    "session": {
        "request": "acquire",
        "session_id": "h1.s1",
        "lease_id": "l1",
        "pool": "p",
        "wait_s": 0.0,
        "env": {"A": "b"},
        "resources": {"cpu_milli": 100, "gpu_count": 1, "gpu_milli": 500, "gpu_models": ["H100"]},
    },
    "find_worker": {"lease_id": "l1"},
    "find_channel": {"attempt_id": "j.1"},
    "attach_lease": {"lease_id": "l1"},
    "detach_lease": {"lease_id": "l1"},
    "restart": {"by": "me"},
    "end_all_work": {},
    "leave_step": {"host_id": "h2", "by": "me", "now": True, "force": False, "cancel": False},
    "move_work": {"host_id": "h2", "by": "me"},
    "measure": {"data": b"x"},
    "membership_present": {},
    "clock": {},
    "fault_report": {},
    "usage": {"by": "user", "since": 0.0, "user_id": ""},
    "model_usage": {"by": "key", "since": 0.0, "user_id": "", "tenant": "lab"},
    "alerts": {},
    "tuning": {},
    "bench_path": {"host_id": "h1", "path": "tls", "bytes": 1000, "trips": 10},
    "restart_server": {"server": "gateway"},
    "why_host": {"host_id": "h2"},
    "list_faults": {"host_id": "", "limit": 10},
    "membership_reaches": {"host_id": "h2"},
    "leave_leases": {"near": {"l1": "h2"}},
    "gateway_told": {"report": b"{}"},
    "service_wanted": {"service": "chat"},
}


class Everyone(Server):
    """Stands where the servers of the host do, and looks at what reaches them."""

    name = "everyone"

    @handles(AcquireLease)
    def _lease(self, request: AcquireLease) -> dict[str, Any]:
        amounts = ("cpu_milli", "gpu_count", "gpu_milli", "memory_mib", "gpu_memory_mib")
        assert all(isinstance(request.resources.get(name, 0), int) for name in amounts), request
        assert all(isinstance(text, str) for text in request.env.values()), request
        self._texts(request)
        return {}

    @handles(AcquireWorker)
    def _acquire(self, request: AcquireWorker) -> dict[str, Any]:
        assert isinstance(request.resources["gpu_count"], int) and request.pool in (None, str(request.pool)), request
        assert all(isinstance(text, str) for text in request.env.values()), request
        self._texts(request)
        return {}

    @handles(RenewSession)
    @handles(CloseSession)
    @handles(ReturnWorker)
    @handles(LeaseEnd)
    def _of_session(self, request: Any) -> dict[str, Any]:
        self._texts(request)
        return {}

    @handles(FindWorker)
    def _find_worker(self, request: FindWorker) -> str:
        self._texts(request)
        return "/nowhere"

    @handles(FindChannel)
    def _find_channel(self, request: FindChannel) -> dict[str, Any]:
        self._texts(request)
        return {"path": "/nowhere", "secret": "s", "terminal": False}

    @handles(AttachLease)
    def _attach(self, request: AttachLease) -> dict[str, Any]:
        self._texts(request)
        return {"socket_path": "/nowhere"}

    @handles(DetachLease)
    def _detach(self, request: DetachLease) -> None:
        self._texts(request)

    @handles(RestartHost)
    def _restart(self, request: RestartHost) -> None:
        self._texts(request)

    @handles(LeaveStep)
    def _leave(self, request: LeaveStep) -> dict[str, Any]:
        self._texts(request)
        return {}

    @handles(MoveWork)
    def _move(self, request: MoveWork) -> dict[str, int]:
        self._texts(request)
        return {"moved": 0, "stay": 0}

    @handles(EndAllWork)
    def _end(self, _request: EndAllWork) -> int:
        return 0

    @handles(StartDelay)
    def _delay(self, request: StartDelay) -> dict[str, Any]:
        self._texts(request)
        return {}

    @handles(TellWorkerEnd)
    def _worker_end(self, request: TellWorkerEnd) -> dict[str, Any]:
        self._texts(request)
        return {}

    @handles(LeaseOutput)
    def _lease_output(self, request: LeaseOutput) -> dict[str, Any]:
        self._texts(request)
        assert request.offset >= 0 and 0 <= request.limit <= 2**19, request
        return {}

    @handles(ReportObjects)
    def _objects(self, request: ReportObjects) -> dict[str, Any]:
        assert 0 <= request.objects_max <= 1000, request
        return {}

    @handles(HostsAway)
    def _away(self, _request: HostsAway) -> dict[str, Any]:
        return {}

    @handles(OwnReadings)
    def _readings(self, _request: OwnReadings) -> list[Any]:
        return []

    @handles(MigGpus)
    def _mig_gpus(self, _request: MigGpus) -> list[Any]:
        return []

    @handles(CreateMig)
    def _create_mig(self, request: CreateMig) -> str:
        self._texts(request)
        return "MIG-1"

    @handles(DestroyMig)
    def _destroy_mig(self, request: DestroyMig) -> None:
        self._texts(request)

    @handles(AmdGpus)
    def _amd_gpus(self, _request: AmdGpus) -> list[Any]:
        return []

    @handles(SetAmdPartition)
    def _set_amd_partition(self, request: SetAmdPartition) -> None:
        self._texts(request)

    @handles(Reaches)
    def _reaches(self, request: Reaches) -> bool:
        self._texts(request)
        return True

    @handles(LeaveLeases)
    def _leave_leases(self, request: LeaveLeases) -> list[str]:
        assert all(isinstance(text, str) for pair in request.near.items() for text in pair), request
        return []

    @handles(GatewayTold)
    def _gateway_told(self, request: GatewayTold) -> None:
        assert isinstance(request.report, bytes), request
        self._texts(request)

    @handles(ServiceWanted)
    def _service_wanted(self, request: ServiceWanted) -> None:
        self._texts(request)

    @handles(NoticeStates)
    def _notice_states(self, _request: NoticeStates) -> dict[str, Any]:
        return {}

    @handles(ListAlerts)
    def _list_alerts(self, _request: ListAlerts) -> dict[str, Any]:
        return {}

    @handles(ListTuning)
    def _list_tuning(self, _request: ListTuning) -> dict[str, Any]:
        return {}

    @handles(ReadWorkUsage)
    def _read_usage(self, request: ReadWorkUsage) -> dict[str, Any]:
        self._texts(request)
        rows = [{**empty_row(f"{number:036}"), "gpu_s": 1.0, "models": {"H100": 1.0}} for number in range(5_000)]
        return {"rows": rows, "kept_since": 0.0}

    @handles(FaultReport)
    def _fault_report(self, _request: FaultReport) -> dict[str, Any]:
        return {}

    @handles(RestartServer)
    def _restart_server(self, request: RestartServer) -> int:
        self._texts(request)
        return 1

    @handles(WhyHost)
    def _why_host(self, request: WhyHost) -> dict[str, Any]:
        self._texts(request)
        return {}

    @handles(ListFaults)
    def _list_faults(self, request: ListFaults) -> dict[str, Any]:
        self._texts(request)
        assert 0 <= request.limit <= 1000, request
        return {}

    @handles(HealthReport)
    def _health(self, _request: HealthReport) -> dict[str, Any]:
        return {"health": "healthy", "problems": []}

    def _texts(self, request: Any) -> None:
        for field in fields_of(request):
            if field.type == "str":
                assert isinstance(getattr(request, field.name), str), request


class Door(Server):
    """Serves as the links server does, without links."""

    name = "door"

    def start(self) -> None:
        async def keep(_asker: str, digests: tuple[str, ...]) -> None:
            assert all(isinstance(digest, str) and len(digest) == 64 for digest in digests)

        relays = Relays(self.runtime, self.host.paths.work_sockets_dir, lambda *_: pytest.fail("no stream is opened"))
        bench = PathBench(self, lambda *_: pytest.fail("no"), lambda: None, lambda _: pytest.fail("no"), self.paths())
        self.services = Services(self, relays, keep, bench.measure)

    def paths(self) -> LargePaths:
        return LargePaths(self.runtime.monotonic, lambda _: False, lambda _: False)

    @handles(tuple)
    async def _serve(self, call: tuple[str, bytes]) -> bytes:
        return pack(await self.services.answer("h2", call[0], unpack_fields(call[1])))


@pytest.fixture
def node(tmp_path: Path) -> InlineNode:
    made = InlineNode()
    context = make_context(tmp_path)
    asked = ("worker_manager", "gpu_coordinator", "cluster_manager", "fault_detector", "load_balancer")
    for name in (*asked, "host", "membership"):
        made.add(Everyone, context, name=name)
    made.add(Door, context)
    return made


def test_every_service_is_among_those_that_are_tried(node: InlineNode) -> None:
    assert set(CALLS) == set(node.servers["door"].services._table)


def test_a_lease_is_asked_for_with_amounts(node: InlineNode) -> None:
    for wrong in ({"cpu_milli": []}, {"gpu_count": "1"}, {"gpu_models": [1]}, {"gpu_milli": -1}, {"gang": 2}):
        with pytest.raises(BadRequest):
            node.request("door", ("acquire_lease", pack({**CALLS["acquire_lease"], "resources": wrong})))
    with pytest.raises(BadRequest, match="env"):
        node.request("door", ("acquire_lease", pack({**CALLS["acquire_lease"], "env": {"A": 1}})))


def test_usage_of_thousands_of_jobs_fits_into_an_answer(node: InlineNode) -> None:
    rows = unpack(node.request("door", ("usage", pack(CALLS["usage"]))))["rows"]
    assert 1_000 < len(rows) < 5_000 and rows[-1]["key"] == OTHERS and sum(row["gpu_s"] for row in rows) == 5_000


def test_a_session_is_asked_about_in_the_words_there_are(node: InlineNode) -> None:
    for request in ("renew", "close", "return", "end", "acquire"):
        node.request("door", ("session", pack({**CALLS["session"], "request": request})))
    for wrong in ({"request": "open"}, {"session_id": 1}, {"resources": {"gpu_count": "1"}}, {"env": []}, {"pool": 1}):
        with pytest.raises(BadRequest):
            node.request("door", ("session", pack({**CALLS["session"], **wrong})))


@pytest.mark.parametrize("seed", range(6 * ROUNDS))
def test_whatever_a_member_sends_to_a_service_is_answered_or_refused_by_name(seed: int, node: InlineNode) -> None:
    dice = Random(seed)
    odd = (*(each for each in ODD if _packs(each)), b"", b"\xff" * 300, nested(400), nested(400, "dict"), {1: 2})
    for _ in range(400):
        service = dice.choice(list(CALLS))
        body = pack(mutated(CALLS[service], dice, odd)) if dice.random() < 0.9 else dice.randbytes(dice.randrange(40))
        if dice.random() < 0.1:
            service = dice.choice(("", "x" * 300, "output\x00", *CALLS))
        with contextlib.suppress(ActorGridError):
            node.request("door", (service, body))
    assert node.request("door", ("health", pack({})))


def _packs(value: Any) -> bool:
    try:
        pack(value)
    except (BadRequest, UnicodeEncodeError):
        return False
    return True
