"""What the other hosts of the cluster may ask of this one, by the name of the service.

Each takes a map of plain values and gives plain values; what is wrong with them is BadRequest. A member of the cluster
may ask for all of it: hosts of one cluster trust each other with output, results and payloads, which any of them may be
given to run anyway (docs/trust.md). Nothing here is unpickled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import time
from typing import Any, cast

from actorgrid.actors.ledger.record_types import ResourcesRecord
from actorgrid.errors import BadRequest, NotFound, NotSupported
from actorgrid.supervisors.background import Background
from actorgrid.supervisors.server import Server

from ..alerts.messages import ListAlerts, ListTuning
from ..cluster.messages import (
    AcquireWorker,
    FaultReport,
    HealthReport,
    HostsAway,
    LeaveLeases,
    LeaveStep,
    ListFaults,
    MoveWork,
    NoticeStates,
    WhyHost,
)
from ..cluster.rebalance import MOVES_MAX
from ..cluster.session_homes import SERVICE as SESSION
from ..cluster.session_homes import read_request
from ..gateway.messages import ReleaseSecrets
from ..gpu.messages import (
    MIG_CHANGE_S,
    AcquireLease,
    AmdGpus,
    CreateMig,
    DestroyMig,
    MigGpus,
    OwnReadings,
    SetAmdPartition,
)
from ..host.messages import RestartHost, RestartServer
from ..ledger.command import read_command
from ..ledger.commands import GrantLease
from ..membership.messages import Reaches
from ..serving.messages import GatewayTold, ServiceWanted
from ..work.attempt_dir import AttemptDir
from ..work.containment_here import containment_here
from ..work.kept_attempts import kept_attempts
from ..work.messages import (
    AttachLease,
    DetachLease,
    EndAllWork,
    FindChannel,
    FindWorker,
    LeaseOutput,
    ObjectStoreWanted,
    ReadWorkUsage,
    ReportObjects,
    StartDelay,
    TellWorkerEnd,
)
from ..work.usage_rows import within
from .measuring import SERVICE
from .output_pages import outputs_page, read_output_piece
from .output_search import last_lines, matching_lines, place_since
from .path_bench import HostPathFigures
from .pieces import PIECE_BYTES_MAX, Fields, Piece, check_digest, is_count, read_piece, read_result_piece
from .relays import Relays
from .step_items import ITEMS_LOOK_S, ItemRequest, ItemTaker

WAIT_S_MAX = 10.0
LOOK_S = 0.05
LEASE_WAIT_S_MAX = 300.0
LEASE_MARGIN_S = 10.0
ATTACH_S, DETACH_S = 30.0, 60.0
FIND_S = 5.0
SESSION_S, SESSION_LEASE_S = 12.0, 40.0
WORKER_END_S = 8.0
USAGE_S = 20.0
END_MARGIN_S = 10.0
LEAVE_STEP_S = 30.0
MOVE_WORK_S = 30.0
REACHES_S = 2.0
FAULTS_MAX = 1000
TOLD_S = 3.0
RELEASE_S = 9.0
OBJECTS_MAX = 1000
ATTEMPTS_MAX = 10_000

Service = Callable[[str, Fields], Awaitable[Any]]


class Services:
    """The services of this host. *keep* fetches payloads from the asking host: (its id, digests). *bench* measures a
    path."""

    def __init__(
        self,
        server: Server,
        relays: Relays,
        keep: Callable[[str, tuple[str, ...]], Awaitable[None]],
        bench: Callable[[Fields], Awaitable[HostPathFigures]],
    ) -> None:
        self._server = server
        self._relays = relays
        self._keep = keep
        self._bench = bench
        self._background = Background(server.runtime, "files of usage")
        self._table: dict[str, Service] = {
            "output": self._output,
            "output_since": self._output_since,
            "output_last": self._output_last,
            "output_matching": self._output_matching,
            "result": self._result,
            "items": self._items,
            "kept_attempts": self._kept_attempts,
            "blob": self._blob,
            "keep_blobs": self._keep_blobs,
            "health": self._health,
            "hosts_away": self._hosts_away,
            "notice_states": self._notice_states,
            "readings": self._readings,
            "mig_gpus": self._mig_gpus,
            "mig_create": self._mig_create,
            "mig_destroy": self._mig_destroy,
            "amd_gpus": self._amd_gpus,
            "set_amd_partition": self._set_amd_partition,
            "acquire_lease": self._acquire_lease,
            SESSION: self._session,
            "attach_lease": self._attach_lease,
            "detach_lease": self._detach_lease,
            "find_worker": self._find_worker,
            "find_channel": self._find_channel,
            "start_delay": self._start_delay,
            "worker_end": self._worker_end,
            "output_files": self._output_files,
            "output_file": self._output_file,
            "lease_output": self._lease_output,
            "objects": self._objects,
            "usage": self._usage,
            "model_usage": self._model_usage,
            "restart": self._restart,
            "end_all_work": self._end_all_work,
            "leave_step": self._leave_step,
            "leave_leases": self._leave_leases,
            "move_work": self._move_work,
            "membership_present": self._membership_present,
            "membership_reaches": self._membership_reaches,
            "clock": self._clock,
            "fault_report": self._fault_report,
            "alerts": self._alerts,
            "tuning": self._tuning,
            "restart_server": self._restart_server,
            "why_host": self._why_host,
            "list_faults": self._list_faults,
            "gateway_told": self._gateway_told,
            "service_wanted": self._service_wanted,
            "release_secrets": self._release_secrets,
            SERVICE: self._measure,
            "bench_path": self._bench_path,
        }

    async def answer(self, asker: str, service: str, fields: Fields) -> Any:
        """Answer a call.

        Raises NotSupported for a service of another version, BadRequest, and what the service raises.
        """
        found = self._table.get(service)
        if found is None:
            raise NotSupported(
                "this host has no such service",
                asked=service[:80],
                found=", ".join(sorted(self._table)),
                hint="hosts of a cluster should run the same version, or neighbouring ones",
            )
        return await found(asker, fields)

    async def _measure(self, _asker: str, fields: Fields) -> int:
        """Answer how many bytes came: for a host that measures its network."""
        data = fields.get("data", b"")
        return len(data) if isinstance(data, bytes) else 0

    async def _bench_path(self, _asker: str, fields: Fields) -> HostPathFigures:
        """Measure a path from this host to another one: for the door that somebody asked."""
        return await self._bench(fields)

    async def _release_secrets(self, asker: str, fields: Fields) -> Any:
        """Answer the secrets of an attempt that was granted to the host that asks, sealed to it."""
        return await self._server.call("gateway", ReleaseSecrets(_text(fields, "attempt_id"), asker), RELEASE_S)

    # -- membership

    async def _membership_present(self, _asker: str, _fields: Fields) -> bool:
        """Answer that this host is there: to whom no datagram of it came."""
        return True

    async def _membership_reaches(self, _asker: str, fields: Fields) -> Any:
        """Answer whether this host reaches another one, over a link, now."""
        return await self._server.call("membership", Reaches(_text(fields, "host_id")), REACHES_S)

    # -- hosts that leave

    async def _end_all_work(self, _asker: str, _fields: Fields) -> int:
        """End what runs on this host, because it is to leave; it starts again elsewhere."""
        grace_s = self._server.host.settings.work.kill_grace_s
        count: int = await self._server.call("worker_manager", EndAllWork(grace_s), grace_s + END_MARGIN_S)
        return count

    async def _leave_step(self, _asker: str, fields: Fields) -> Any:
        """Take the next step of a host that leaves: for the host that leads."""
        flags = {name: fields.get(name) is True for name in ("now", "force", "cancel")}
        step = LeaveStep(_text(fields, "host_id"), _text(fields, "by"), **flags)
        return await self._server.call("cluster_manager", step, LEAVE_STEP_S)

    async def _move_work(self, _asker: str, fields: Fields) -> Any:
        """Have a drained host's work start again elsewhere: for the host that leads."""
        order = MoveWork(_text(fields, "host_id"), _text(fields, "by"))
        return await self._server.call("cluster_manager", order, MOVE_WORK_S)

    # -- files

    async def _output(self, _asker: str, fields: Fields) -> Fields:
        """Answer an attempt's output from an offset on; waits a while for some when there is none yet."""
        folder = self._folder(fields)
        stream, offset, size = _text(fields, "stream"), _count(fields, "offset"), _count(fields, "size")
        deadline = self._server.runtime.monotonic() + min(_number(fields, "wait_s"), WAIT_S_MAX)
        while True:
            exists = folder.path.exists()
            ended = folder.ended()  # before the read: what was written until then is read
            data = folder.read_output(stream, offset, min(size, 2**19))
            if data or not exists or ended or self._server.runtime.monotonic() >= deadline:
                return {"exists": exists, **Piece(data, folder.output_size(stream)).to_plain()}
            await self._server.sleep(LOOK_S)

    async def _items(self, _asker: str, fields: Fields) -> Fields:
        """Answer what a step that streams has written from a position on; waits a while for some."""
        folder = self._folder(fields)
        taker = ItemTaker(_text(fields, "by"), _count(fields, "taken"))
        request = ItemRequest(folder, _count(fields, "position"), _count(fields, "size"), taker)
        deadline = self._server.runtime.monotonic() + min(_number(fields, "wait_s"), WAIT_S_MAX)
        while True:
            piece = request.read()
            if piece.data or self._server.runtime.monotonic() >= deadline:
                return piece.to_plain()
            await self._server.sleep(ITEMS_LOOK_S)

    async def _output_since(self, _asker: str, fields: Fields) -> Fields:
        """Answer where the output of the last seconds begins."""
        since_s = None if fields.get("since_s") is None else _number(fields, "since_s")
        return place_since(self._folder(fields), _text(fields, "stream"), since_s).to_plain()

    async def _output_last(self, _asker: str, fields: Fields) -> Fields:
        """Answer where the last lines of a part of the output begin."""
        first, end, count = _count(fields, "first"), _count(fields, "end"), _count(fields, "count")
        stream, pattern = _text(fields, "stream"), _text(fields, "pattern")
        return last_lines(self._folder(fields), stream, first, end, count, pattern).to_plain()

    async def _output_matching(self, _asker: str, fields: Fields) -> Fields:
        """Answer lines of the output that match a pattern; waits a while for some when there is nothing new yet."""
        end = None if fields.get("end") is None else _count(fields, "end")
        folder, stream, offset = self._folder(fields), _text(fields, "stream"), _count(fields, "offset")
        deadline = self._server.runtime.monotonic() + min(_number(fields, "wait_s"), WAIT_S_MAX)
        while True:
            ended = folder.ended() or not folder.path.exists()
            found = matching_lines(folder, stream, offset, end, _text(fields, "pattern"))
            if found.end > offset or ended or self._server.runtime.monotonic() >= deadline:
                return found.to_plain()
            await self._server.sleep(LOOK_S)

    async def _kept_attempts(self, _asker: str, fields: Fields) -> Fields:
        """Answer which of these attempts still have their results."""
        names = fields.get("attempts")
        if not isinstance(names, list) or len(names) > ATTEMPTS_MAX or not all(isinstance(each, str) for each in names):
            raise BadRequest("attempts are a list of names", found=str(names)[:100])
        return {"attempts": kept_attempts(self._server.host.paths.attempts_dir, names)}

    async def _result(self, _asker: str, fields: Fields) -> Fields:
        folder = self._folder(fields)
        piece = read_result_piece(folder, _count(fields, "offset"), _count(fields, "size"))
        if piece is None:
            raise NotFound("the result is not kept here", asked=folder.attempt_id)
        return piece.to_plain()

    async def _output_files(self, _asker: str, fields: Fields) -> Fields:
        """Answer a page of the outputs that an attempt left."""
        return outputs_page(self._folder(fields), _text(fields, "behind")).to_plain()

    async def _output_file(self, _asker: str, fields: Fields) -> Fields:
        folder = self._folder(fields)
        piece = read_output_piece(folder, _text(fields, "path"), _count(fields, "offset"), _count(fields, "size"))
        if piece is None:
            raise NotFound("that output is not kept here", asked=folder.attempt_id)
        return piece.to_plain()

    async def _blob(self, _asker: str, fields: Fields) -> Fields:
        digest = check_digest(fields.get("digest"))
        path = self._server.host.paths.blobs_dir / digest
        piece = read_piece(path, _count(fields, "offset"), _count(fields, "size"))
        if piece is None:
            raise NotFound("the payload is not here", asked=digest)
        return piece.to_plain()

    async def _keep_blobs(self, asker: str, fields: Fields) -> None:
        digests = fields.get("digests")
        if not isinstance(digests, list):
            raise BadRequest("digests is a list", asked=str(digests)[:80])
        await self._keep(asker, tuple(check_digest(digest) for digest in digests))

    def _folder(self, fields: Fields) -> AttemptDir:
        return AttemptDir(self._server.host.paths.attempts_dir, _text(fields, "attempt_id"))

    # -- the host

    async def _restart(self, asker: str, fields: Fields) -> Any:
        by = f"{_text(fields, 'by')}, by host {asker}"
        return await self._server.call("host", RestartHost(by))

    async def _health(self, _asker: str, _fields: Fields) -> Fields:
        """Answer this host's ``health`` and ``problems``, and what it keeps work in."""
        report = await self._server.call("fault_detector", HealthReport(), 2.0)
        kept = await containment_here(self._server)
        return {"health": str(report["health"]), "problems": list(report["problems"]), "containment": kept}

    async def _clock(self, _asker: str, _fields: Fields) -> Fields:
        """Answer the time on this host's wall clock."""
        return {"at": time()}

    async def _fault_report(self, _asker: str, _fields: Fields) -> Any:
        """Answer what this host says of itself, for the host that leads."""
        return await self._server.call("fault_detector", FaultReport(), 2.0)

    async def _alerts(self, _asker: str, _fields: Fields) -> Any:
        """Answer the alerts of this host."""
        return await self._server.call("fault_detector", ListAlerts(), 2.0)

    async def _tuning(self, _asker: str, _fields: Fields) -> Any:
        """Answer what is slow on this host."""
        return await self._server.call("fault_detector", ListTuning(), 2.0)

    async def _restart_server(self, asker: str, fields: Fields) -> Any:
        """Have a server of this host killed and started again: for the host that leads, which found it silent."""
        return await self._server.call("host", RestartServer(_text(fields, "server"), f"host {asker}"))

    async def _why_host(self, _asker: str, fields: Fields) -> Any:
        """Answer what is known of a host, and what would be done about it: for the host that leads."""
        return await self._server.call("fault_detector", WhyHost(_text(fields, "host_id")), 2.0)

    # -- services

    async def _gateway_told(self, asker: str, fields: Fields) -> None:
        """Take what the gateways of the asking host tell of demand: for the host that leads."""
        report = fields.get("report")
        if not isinstance(report, bytes):
            raise BadRequest("a report is bytes", asked=type(report).__name__)
        await self._server.call("cluster_manager", GatewayTold(asker, report), TOLD_S)

    async def _service_wanted(self, asker: str, fields: Fields) -> None:
        """Take that somebody waits at the asking host for a service: for the host that leads."""
        await self._server.call("cluster_manager", ServiceWanted(asker, _text(fields, "service")), TOLD_S)

    async def _list_faults(self, _asker: str, fields: Fields) -> Any:
        """Answer what happened to hosts, and was done about it: for the host that leads."""
        limit = min(_count(fields, "limit"), FAULTS_MAX)
        return await self._server.call("fault_detector", ListFaults(_text(fields, "host_id"), limit), 2.0)

    async def _hosts_away(self, _asker: str, _fields: Fields) -> Any:
        """Answer which hosts this one, which leads, has not heard of."""
        return await self._server.call("fault_detector", HostsAway(), 2.0)

    async def _notice_states(self, _asker: str, _fields: Fields) -> Any:
        """Answer how far notifications are that this host, which leads, sends."""
        return await self._server.call("cluster_manager", NoticeStates(), 2.0)

    async def _readings(self, _asker: str, _fields: Fields) -> Any:
        """Answer the present readings of this host's devices."""
        return await self._server.call("gpu_coordinator", OwnReadings())

    async def _mig_gpus(self, _asker: str, _fields: Fields) -> Any:
        """Answer which GPUs of this host can be cut, and how they are."""
        return await self._server.call("gpu_coordinator", MigGpus())

    async def _mig_create(self, _asker: str, fields: Fields) -> Any:
        """Make a MIG instance in a GPU of this host."""
        wish = CreateMig(_text(fields, "gpu"), _text(fields, "profile"))
        return await self._server.call("gpu_coordinator", wish, MIG_CHANGE_S)

    async def _mig_destroy(self, _asker: str, fields: Fields) -> Any:
        """Take away a MIG instance of this host."""
        return await self._server.call("gpu_coordinator", DestroyMig(_text(fields, "instance")), MIG_CHANGE_S)

    async def _amd_gpus(self, _asker: str, _fields: Fields) -> Any:
        """Answer which GPUs of AMD's this host can cut, and how they are."""
        return await self._server.call("gpu_coordinator", AmdGpus())

    async def _set_amd_partition(self, _asker: str, fields: Fields) -> Any:
        """Have a GPU of AMD's of this host be cut otherwise."""
        wish = SetAmdPartition(_text(fields, "gpu"), _text(fields, "change"), _text(fields, "mode"))
        return await self._server.call("gpu_coordinator", wish, MIG_CHANGE_S)

    # -- sessions

    async def _acquire_lease(self, _asker: str, fields: Fields) -> Any:
        """Place a worker for another host's session: for the host that leads."""
        wait_s = min(_number(fields, "wait_s"), LEASE_WAIT_S_MAX)
        names = ("lease_id", "session_id", "pool", "user_id")
        texts = {name: _text(fields, name) for name in names}
        # By the same check as the grant that is to come of it: what it holds is planned with before that.
        read_command(
            GrantLease(
                texts["lease_id"],
                texts["session_id"],
                "",
                0,
                [],
                cast("ResourcesRecord", _map(fields, "resources")),  # looked at by read_command
                pool=texts["pool"],
                env=_map(fields, "env"),
                term=0,
                at=0.0,
                user_id=texts["user_id"],
            ).to_plain()
        )
        request = AcquireLease(
            resources=cast("ResourcesRecord", _map(fields, "resources")),
            env=_map(fields, "env"),
            wait_s=wait_s,
            near=_text(fields, "near") if "near" in fields else "",  # hosts of before 0.2 have no wish
            **texts,
        )
        return await self._server.call("gpu_coordinator", request, wait_s + LEASE_MARGIN_S)

    async def _session(self, _asker: str, fields: Fields) -> Any:
        """Do for another host's client what it asks about its session, which is open here."""
        request = read_request(fields)
        timeout_s = request.wait_s + SESSION_LEASE_S if isinstance(request, AcquireWorker) else SESSION_S
        return await self._server.call("load_balancer", request, timeout_s)

    async def _leave_leases(self, _asker: str, fields: Fields) -> Any:
        """Have clients of this host let go of leases on an overloaded host."""
        near = _map(fields, "near")
        texts = [*near, *near.values()]
        if len(near) > MOVES_MAX or not all(isinstance(text, str) and len(text) < 1000 for text in texts):
            raise BadRequest("near is a host for each lease", asked=f"{len(near)} leases", hint=f"{MOVES_MAX} at most")
        return await self._server.call("load_balancer", LeaveLeases(near))

    async def _start_delay(self, _asker: str, fields: Fields) -> Any:
        """Answer what an attempt that is placed here waits for."""
        return await self._server.call("worker_manager", StartDelay(_text(fields, "attempt_id")), 2.0)

    async def _attach_lease(self, _asker: str, fields: Fields) -> Fields:
        lease_id = _text(fields, "lease_id")
        self._server.cast("worker_manager", ObjectStoreWanted())  # of its session this host has heard nothing else
        grant: Fields = await self._server.call("worker_manager", AttachLease(lease_id), ATTACH_S)
        self._relays.serves(lease_id, str(grant["socket_path"]))
        return grant

    async def _find_worker(self, _asker: str, fields: Fields) -> None:
        """Have the worker of a lease be there for streams of other hosts, also after this server began anew."""
        lease_id = _text(fields, "lease_id")
        self._relays.serves(lease_id, await self._server.call("worker_manager", FindWorker(lease_id), FIND_S))

    async def _find_channel(self, _asker: str, fields: Fields) -> Fields:
        """Have the channels of an attempt be there for streams of other hosts; answer what is to be said there."""
        attempt_id = _text(fields, "attempt_id")
        found: Fields = await self._server.call("worker_manager", FindChannel(attempt_id), FIND_S)
        self._relays.serves(attempt_id, str(found["path"]))
        return {"secret": found["secret"], "terminal": found["terminal"]}

    async def _detach_lease(self, _asker: str, fields: Fields) -> None:
        lease_id = _text(fields, "lease_id")
        detach = DetachLease(lease_id, fields.get("cancelled") is True)
        await self._server.call("worker_manager", detach, DETACH_S)
        self._relays.ended(lease_id)

    async def _lease_output(self, _asker: str, fields: Fields) -> Any:
        offset, limit = _count(fields, "offset"), min(_count(fields, "limit"), 2**19)
        ask = LeaseOutput(_text(fields, "lease_id"), _text(fields, "stream"), offset, limit)
        return await self._server.call("worker_manager", ask, WORKER_END_S)

    async def _objects(self, _asker: str, fields: Fields) -> Any:
        """Answer what lies in this host's object store."""
        ask = ReportObjects(min(_count(fields, "limit"), OBJECTS_MAX))
        return await self._server.call("worker_manager", ask, WORKER_END_S)

    async def _usage(self, _asker: str, fields: Fields) -> Any:
        """Answer what work of this host used."""
        ask = ReadWorkUsage(_text(fields, "by"), _number(fields, "since", most=1e12), _text(fields, "user_id"))
        found: dict[str, Any] = await self._server.call("worker_manager", ask, USAGE_S)
        return {**found, "rows": within(found["rows"], PIECE_BYTES_MAX)}

    async def _model_usage(self, _asker: str, fields: Fields) -> Any:
        """Answer what models used at this host's gateway."""
        from ..model_gateway.process_spec import FOLDER  # a host that serves no models does without
        from ..model_gateway.usage_store import read_usage_rows, usage_within

        by, user, tenant = (_text(fields, name) for name in ("by", "user_id", "tenant"))
        since, folder = _number(fields, "since", most=1e12), self._server.host.paths.data_dir / FOLDER
        rows, kept = await self._background.run(lambda: read_usage_rows(folder, by, since, user, tenant))
        return {"rows": usage_within(rows, PIECE_BYTES_MAX), "kept_since": kept}

    async def _worker_end(self, _asker: str, fields: Fields) -> Any:
        ask = TellWorkerEnd(_text(fields, "worker_id"), _text(fields, "lease_id"))
        return await self._server.call("worker_manager", ask, WORKER_END_S)


def _text(fields: Fields, name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or len(value) > 1000:
        raise BadRequest(f"{name} is a text", asked=str(value)[:80])
    return value


def _count(fields: Fields, name: str) -> int:
    value = fields.get(name)
    if not is_count(value):
        raise BadRequest(f"{name} is a number of bytes", asked=str(value)[:80])
    return value


def _number(fields: Fields, name: str, most: float = 1e9) -> float:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < most:
        raise BadRequest(f"{name} is a number of seconds", asked=str(value)[:80])
    return float(value)


def _map(fields: Fields, name: str) -> Fields:
    value = fields.get(name)
    if not isinstance(value, dict):
        raise BadRequest(f"{name} is a map", asked=str(value)[:80])
    return value
