"""Links: the server that speaks for this host with the servers of other hosts, on the port of calls (base port + 1).

It keeps nothing that a restart could lose: who asks asks again, and connections to workers are made anew.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import actorgrid
from actorgrid.actors.ledger.query_answers import LedgerStatus, PayloadsPage
from actorgrid.errors import ActorGridError, HostUnreachable, NotFound, NotLeader, NotSupported
from actorgrid.supervisors.background import Background
from actorgrid.supervisors.runtime import Runtime, Waiter
from actorgrid.supervisors.server import handles
from actorgrid.transports.bulk.connection import PiecesConnection, dial
from actorgrid.transports.object_frames import bulk_path, far_path
from actorgrid.transports.peer.calls import IncomingCall, PendingAnswer, Stream
from actorgrid.transports.peer.limits import PeerLimits
from actorgrid.transports.peer.net import PeerNet
from actorgrid.transports.peer.relay_end import ACTOR
from actorgrid.transports.user_actor_frames import far_actors_path

from ..consensus.member_links import addresses_of, refusal
from ..ledger.client import LedgerClient, LedgerFollower
from ..ledger.messages import Applied, LedgerSnapshot, Query
from ..membership.messages import StateCame
from ..replication.messages import MembersNow, PacketCame, RetirementFound
from ..security.messages import MaterialChanged
from ..security.peer_identity import peer_identity
from ..work.attempt_dir import RESULT_FILE_BYTES_MAX
from ..work.attempt_specs import object_store_path
from ..work.environment import host_tag
from .actor_relays import ActorRelays
from .bulk import BulkObjects
from .fetching import Fetching
from .large_paths import LargePaths, PeerPathsView
from .measuring import Measuring
from .messages import (
    AskHost,
    AskHosts,
    AskLeader,
    CastPackets,
    FetchBlobs,
    FetchResult,
    OpenRelay,
    SpreadBlobs,
    TellMembers,
    TellPaths,
)
from .object_relays import OBJECTS, ObjectRelays
from .path_bench import BENCH, BenchStreams, PathBench
from .payloads import Payloads
from .pieces import Fields, check_digest, pack, unpack, unpack_fields
from .rdma_streams import RDMA, rdma_status, start_rdma, take_rdma
from .relays import WORKER, Relays
from .retirements import command_of, openings_of
from .services import Services

if TYPE_CHECKING:
    from actorgrid.transports.rdma.streams import RdmaStreams

FETCH_S = 30.0
"""For one piece of a file."""
SPREAD_S = 30.0
AGAIN_S = 0.1
REPAIR_S = 2.0
LOOK_S = 20.0
RETIRE_S = 8.0
"""For the ledger to take a retirement: less than until the next look for one."""
CALLS = "calls"
SHARED_STATE, MEMBERSHIP = "state", "membership"
"""The targets of casts: packets of the shared state, and full states of membership."""
LIMITS = PeerLimits(streams_max=512, stream_window_bytes=256 * 2**10, stream_unsent_bytes=256 * 2**10)
"""A stream for each worker that a client of another host uses: many, of small windows."""


class _Tally:
    """Counts the answers to several calls; ``enough`` is set once enough have come, or cannot come any more."""

    def __init__(self, missing: int, open_calls: int) -> None:
        self.missing = missing
        self.failures: list[str] = []
        self.enough = Waiter()
        self._open = open_calls

    def count(self, answer: PendingAnswer, host_id: str) -> None:
        """Count one call that is done."""
        self._open -= 1
        try:
            answer.result()
            self.missing -= 1
        except ActorGridError as error:
            self.failures.append(f"{host_id}: {error.message}")
        if self.missing <= 0 or not self._open:
            self.enough.set(None)


class Links(LedgerFollower):
    """The server for calls between hosts; see the head of the module."""

    name: ClassVar[str] = "links"
    # A payload of 64 MiB is brought to the disk in one go.
    max_handler_s: ClassVar[float] = 15.0

    def __init__(self, host: Any, runtime: Runtime) -> None:
        super().__init__(host, runtime)
        self._ledger = LedgerClient(self, self._on_snapshot, self._on_applied, jobs="told")
        self._fetching = Fetching(self._ask, self._bring_blob)
        self._bringing = Background(runtime, "payloads")
        self._relays = Relays(runtime, host.paths.work_sockets_dir, self._open_stream)
        self._store_path = object_store_path(host.paths.work_sockets_dir, host_tag(host.paths.data_dir))
        self._paths = LargePaths(runtime.monotonic, lambda host_id: host_id in self._ledger.members, self._rdma_up)
        self._object_relays = ObjectRelays(runtime, self._store_path, self._open_fast_stream, self._paths.stream_bytes)
        self._actor_relays = ActorRelays(
            runtime, str(host.host_id), host.paths.work_sockets_dir, self._open_stream, host.paths.users_dir
        )
        self._rdma: RdmaStreams | None = None
        self._bulk = BulkObjects(self._store_path, self._dial_for_pieces, self._paths, host.paths.blobs_dir)
        self._bench = PathBench(self, self._open_stream, lambda: self._rdma, self._dial_for_pieces, self._paths)
        self._bench_streams = BenchStreams(runtime)
        self._services = Services(self, self._relays, self._keep, self._bench.measure)
        self._payloads = Payloads()
        self._served_total = 0
        self._refused_total = 0
        self._packets_lost_total = 0

    def start(self) -> None:
        """Listen. Raises PortInUse, KeyUnusable and what else is wrong with the host's key and certificate."""
        enrolment = self.host.enrolment
        assert enrolment is not None, "only a host of a cluster has links"
        self._net = PeerNet(
            self.runtime,
            peer_identity(self.host.paths.security_dir),
            (enrolment.address, enrolment.calls_port),
            resolve=lambda host_id: addresses_of(self._ledger.members.get(host_id), CALLS),
            admit=self._admit,
            on_call=lambda call: self.spawn(self._serve(call)),
            on_cast=self._cast_came,
            on_stream=self._take_stream,
            software=actorgrid.__version__,
            limits=LIMITS,
        )
        takers = {OBJECTS: self._object_relays.take, BENCH: self._bench_streams.take}
        self._rdma = start_rdma(self.host, self.runtime, self._net.open_stream, takers, LIMITS)
        self._net.on_pieces = self._bulk.served.serve
        self._bulk.listen(Path(bulk_path(str(self._store_path))))
        self._object_relays.listen(Path(far_path(str(self._store_path))))
        self._actor_relays.listen(Path(far_actors_path(str(self._store_path))))
        self.spawn(self._ledger.start())
        self.spawn(Measuring(self, self._ledger, self._net.call).run())
        self.every(REPAIR_S, self._repair)

    def stop(self, reason: str) -> None:
        """Close everything; who waits for another host hears PeerGone."""
        self._relays.close_all()
        self._object_relays.close()
        self._bulk.close()
        self._actor_relays.close()
        if self._rdma is not None:
            self._rdma.close()
        self._net.close()

    # -- the ledger

    def _on_applied(self, message: Applied) -> None:
        for kind, identity, record in message.changes:
            if kind == "member":
                self._drop_refused()
                if record is None:
                    self._paths.forget(identity)
                    if self._rdma is not None:
                        self._rdma.forget(identity)
                self._tell_members()
            elif kind in ("absent", "retirement"):
                self._tell_members()
            elif kind == "job" and record is not None and (not record["attempts"] or "checkpoint_digest" in record):
                self._payloads.job(record)
            elif kind == "schedule" and record is not None:
                self._payloads.job(record["job"])
            elif kind == "service" and record is not None:
                self._payloads.job(record["revisions"][-1]["job"])
            elif kind == "allocation" and record is None:
                self._relays.ended(identity)

    def _on_snapshot(self, snapshot: LedgerSnapshot) -> None:
        self._drop_refused()
        self._tell_members()
        self._payloads.restart()
        for lease_id in self._relays.leases:
            if lease_id not in snapshot.allocations:
                self._relays.ended(lease_id)

    def _drop_refused(self) -> None:
        self._net.drop_refused()
        self._bulk.served.drop_refused(self._admit)

    def _dial_for_pieces(self, host_id: str) -> PiecesConnection:
        """Called by threads of their own, which may wait. Raises as ``dial``."""
        addresses = list(addresses_of(self._ledger.members.get(host_id), CALLS))
        return dial(self._net.identity, addresses, host_id, self._admit, actorgrid.__version__)

    def _admit(self, host_id: str, fingerprint: str) -> str | None:
        return refusal(host_id, self._ledger.members.get(host_id), fingerprint)

    @handles(MaterialChanged)
    def _material_changed(self, _message: MaterialChanged) -> None:
        self._net.renew(peer_identity(self.host.paths.security_dir))

    # -- what other hosts ask

    async def _serve(self, call: IncomingCall) -> None:
        self._served_total += 1
        try:
            answer = await self._services.answer(call.host_id, call.target, unpack_fields(call.body))
            call.reply(pack(answer))
        except ActorGridError as error:
            self._refused_total += 1
            call.fail(error)

    def _cast_came(self, host_id: str, target: str, body: bytes) -> None:
        if target == SHARED_STATE:
            taken = self.cast("distributed_state", PacketCame(host_id, body))
        elif target == MEMBERSHIP:
            taken = self.cast("membership", StateCame(host_id, body))
        else:
            self._refused_total += 1
            known = f"{SHARED_STATE}, {MEMBERSHIP}"
            raise NotSupported("there are no such casts", asked=f"{target[:80]} of {host_id}", found=known)
        self._packets_lost_total += not taken

    @handles(CastPackets)
    def _cast_packets(self, request: CastPackets) -> None:
        for host_id, packet in request.packets:
            try:
                self._net.cast(host_id, request.target, packet)
            except ActorGridError as error:  # a full queue: whatever it was is told again later
                self._packets_lost_total += 1
                self.log.debug("a packet for %s is lost: %s", host_id, error)

    @handles(TellMembers)
    def _told_to_tell_members(self, _message: TellMembers) -> None:
        self._tell_members()

    def _tell_members(self) -> None:
        """Not before the ledger's first snapshot: of no members at all the shared state would make wrong majorities."""
        if self._ledger.members:
            members = self._ledger.members
            sites = {host_id: member["site"] for host_id, member in members.items() if member.get("site")}
            away, retired = frozenset(self._ledger.absent), openings_of(self._ledger.retirements)
            self.cast("distributed_state", MembersNow(tuple(sorted(members)), sites, away, retired))

    @handles(RetirementFound)
    async def _retirement_found(self, message: RetirementFound) -> None:
        """Propose it; what is refused, as another was first or a member is of an older version, is found again."""
        try:
            await self._ledger.propose(command_of(message.openings, self.host.host_id), RETIRE_S)
        except ActorGridError as error:
            self.log.debug("openings of host %s are not retired yet: %s", message.openings.host_id, error)

    def _take_stream(self, stream: Stream) -> None:
        if stream.target == OBJECTS:
            self._object_relays.take(stream)
            return
        if stream.target == ACTOR:
            self._actor_relays.take(stream, unpack_fields(stream.head))
            return
        if stream.target == RDMA:
            take_rdma(self._rdma, stream)
            return
        if stream.target == BENCH:
            self._bench_streams.take(stream)
            return
        if stream.target != WORKER:
            known = f"{WORKER}, {OBJECTS}, {ACTOR}, {RDMA}, {BENCH}"
            raise NotSupported("there is no such stream", asked=stream.target[:80], found=known)
        self._relays.take(stream, str(unpack_fields(stream.head).get("lease_id")))

    # -- what the servers of this host ask

    @handles(AskHost)
    async def _ask_host(self, request: AskHost) -> Any:
        return await self._ask(request.host_id, request.service, request.fields, request.timeout_s)

    @handles(AskHosts)
    async def _ask_hosts(self, request: AskHosts) -> dict[str, Any]:
        body = pack(request.fields)
        answers = {
            host_id: self._net.call(host_id, request.service, body, request.timeout_s)
            for host_id in request.host_ids
            if host_id != self.host.host_id
        }
        found = {}
        for host_id, answer in answers.items():
            try:
                found[host_id] = unpack(await answer)
            except ActorGridError as error:
                self.log.debug("%s of %s: %s", request.service, host_id, error)
        return found

    @handles(AskLeader)
    async def _ask_leader(self, request: AskLeader) -> Any:
        deadline = self.runtime.monotonic() + request.timeout_s
        while True:
            leader, left_s = self._ledger.leader, deadline - self.runtime.monotonic()
            try:
                if leader is not None:
                    return await self._ask(leader, request.service, request.fields, max(left_s, AGAIN_S))
            except (NotLeader, HostUnreachable) as error:
                self.log.debug("asking for the leader again: %s", error)
            if self.runtime.monotonic() >= deadline:
                raise NotLeader(
                    "no host that leads answers",
                    asked=request.service,
                    found=f"host {leader} led last" if leader else "none is known to lead",
                    hint="a majority of the voters has to be up and to reach each other: actorgrid hosts",
                )
            await self.sleep(AGAIN_S)

    async def _ask(self, host_id: str, service: str, fields: Fields, timeout_s: float = FETCH_S) -> Any:
        if host_id == self.host.host_id:
            return await self._services.answer(host_id, service, fields)
        return unpack(await self._net.call(host_id, service, pack(fields), timeout_s))

    # -- payloads and results

    @handles(FetchBlobs)
    async def _fetch_blobs(self, request: FetchBlobs) -> None:
        digests = tuple(check_digest(digest) for digest in request.digests)
        await self._fetch_from(self._likely_hosts(await self._voters()), digests)

    async def _keep(self, asker: str, digests: tuple[str, ...]) -> None:
        await self._fetch_from([asker], digests)

    async def _fetch_from(self, hosts: list[str], digests: tuple[str, ...]) -> None:
        for digest in digests:
            await self._fetch_blob(digest, hosts)

    async def _fetch_blob(self, digest: str, hosts: list[str]) -> None:
        path = self.host.paths.blobs_dir / digest
        if path.exists():
            path.touch()  # a fresh time, so that a sweep does not take it before its job is committed
            return
        try:
            await self._fetching.fetch(path, hosts, "blob", {"digest": digest}, digest)
        except NotFound as error:
            raise NotFound(
                "no host that answers has the payload",
                asked=digest,
                found=f"asked {len(hosts)} hosts",
                hint="the host that took the job may be away; the job can run when it is back",
            ) from error

    async def _bring_blob(self, host_id: str, digest: str, size: int, fd: int) -> bool:
        """Have a large payload, or checkpoint, written to *fd* from several connections; ``False``: it has to come by
        calls. Raises OSError."""
        if self._paths.is_left(host_id):
            return False

        def bring() -> bool:
            memory = self._bulk.bring_blob(host_id, digest, size)
            with memory, memoryview(memory) as data:
                if hashlib.sha256(data).hexdigest() != digest:
                    return False
                at = 0
                while at < size:
                    at += os.pwrite(fd, data[at:], at)
            return True

        try:
            return await self._bringing.run(bring)
        except ActorGridError as error:
            self.log.info("payload %s of %s comes by calls: %s", digest, host_id, error)
            return False

    @handles(SpreadBlobs)
    async def _spread(self, request: SpreadBlobs) -> None:
        voters = await self._voters()
        others = [host_id for host_id in voters if host_id != self.host.host_id]
        missing = len(voters) // 2 + 1 - (len(voters) - len(others))
        fields: Fields = {"digests": [check_digest(digest) for digest in request.digests]}
        if missing <= 0:
            return
        tally = _Tally(missing, len(others))
        for host_id in others:
            answer = self._net.call(host_id, "keep_blobs", pack(fields), SPREAD_S)
            answer.on_done(lambda answer=answer, host_id=host_id: tally.count(answer, host_id))  # type: ignore[misc]
        await tally.enough  # the others go on by themselves
        if tally.missing > 0:
            raise HostUnreachable(
                "too few voters take the job's payload, so it is not accepted",
                asked=f"{len(voters) // 2 + 1} of {len(voters)}",
                found="; ".join(tally.failures)[:500],
                hint="a majority of the voters has to be up and to reach each other: actorgrid hosts",
            )

    async def _repair(self) -> None:
        """Bring the payloads that this host, as a voter, should have and lacks."""
        voters = await self._voters()
        if self._payloads.role(self.host.host_id in voters):
            await self._look_at_all_payloads()
        blobs_dir = self.host.paths.blobs_dir
        missing = [digest for digest in self._payloads.next_round() if not (blobs_dir / digest).exists()]
        if not missing:
            return
        hosts = self._likely_hosts(voters)
        try:
            wanted = (await self.call("consensus", Query("files_in_use", {"digests": missing}), LOOK_S))["digests"]
        except ActorGridError:
            self._payloads.named(missing)
            raise
        for digest in missing:
            if digest in wanted:  # its job may have ended meanwhile
                try:
                    await self._fetch_blob(digest, hosts)
                except ActorGridError as error:
                    self.log.info("payload %s cannot be kept here yet: %s", digest, error)
                    self._payloads.again(digest)

    async def _look_at_all_payloads(self) -> None:
        """Look at all payloads, page by page. Raises what Consensus raises; then all are looked at again."""
        behind = None
        try:
            while True:
                page: PayloadsPage = await self.call("consensus", Query("payloads", {"behind": behind}), LOOK_S)
                self._payloads.named(page["digests"])
                behind = page["next"]
                if behind is None:
                    return
        except ActorGridError:
            self._payloads.restart()
            raise

    async def _voters(self) -> list[str]:
        """The hosts that vote, whoever answers soonest first: with a link, and of this site."""
        status: LedgerStatus = await self.call("consensus", Query("status"))
        members = self._ledger.members
        voters = [host_id for host_id, member in members.items() if member["node"] in status["voters"]]
        return sorted(voters, key=lambda host_id: (not self._net.reachable(host_id), not self._near(host_id)))

    def _near(self, host_id: str) -> bool:
        """Whether that member is at this host's site."""
        here, there = self._ledger.members.get(self.host.host_id), self._ledger.members.get(host_id)
        return here is not None and there is not None and here.get("site", "") == there.get("site", "")

    def _likely_hosts(self, voters: list[str]) -> list[str]:
        """The hosts that may have a payload: the voters, and the one that took the job."""
        others = [host_id for host_id in self._ledger.members if host_id not in voters]
        return [host_id for host_id in (*voters, *others) if host_id != self.host.host_id]

    @handles(FetchResult)
    async def _fetch_result(self, request: FetchResult) -> str:
        # Beside the payloads, whose sweep takes it some time after it was used.
        path = self.host.paths.blobs_dir / f"result-{request.attempt_id}"
        if not path.exists():
            fields: Fields = {"attempt_id": request.attempt_id}
            await self._fetching.fetch(path, [request.host_id], "result", fields, bytes_max=RESULT_FILE_BYTES_MAX)
        path.touch()
        return str(path)

    # -- workers of other hosts

    @handles(OpenRelay)
    def _open_relay(self, request: OpenRelay) -> str:
        return self._relays.open(request.host_id, request.lease_id)

    def _open_stream(self, host_id: str, target: str, head: bytes) -> Stream:
        return self._net.open_stream(host_id, target, head)

    def _open_fast_stream(self, host_id: str, target: str, head: bytes) -> Stream:
        """Over RDMA where the pair with that host is up, else over TLS."""
        fast = None if self._rdma is None else self._rdma.open_stream(host_id, target, head)
        return fast or self._net.open_stream(host_id, target, head)

    def _rdma_up(self, host_id: str) -> bool:
        return self._rdma is not None and self._rdma.is_up(host_id)

    @handles(TellPaths)
    def _tell_paths(self, _message: TellPaths) -> list[PeerPathsView]:
        others = sorted(self._ledger.members.keys() - {self.host.host_id})
        return self._paths.views(others, self._net.reachable, rdma_status(self._rdma))

    # -- how we are

    def metrics(self) -> dict[str, float]:
        """Calls served and refused, files fetched, connections relayed, links refused by reason."""
        figures = {
            "link_calls_served_total": float(self._served_total),
            "link_calls_refused_total": float(self._refused_total),
            "files_fetched_total": float(self._fetching.fetched_total),
            "files_fetched_bytes_total": float(self._fetching.fetched_bytes_total),
            "payloads_to_look_for": float(len(self._payloads)),
            "link_packets_lost_total": float(self._packets_lost_total),
            "relays": float(len(self._relays)),
            "relays_opened_total": float(self._relays.opened_total),
            "object_relays": float(len(self._object_relays)),
            "object_relays_opened_total": float(self._object_relays.opened_total),
            "actor_relays": float(len(self._actor_relays)),
            "actor_relays_opened_total": float(self._actor_relays.opened_total),
        }
        for refusal_name, count in self._net.refusals.items():
            figures[f"links_refused_{refusal_name}_total"] = float(count)
        return figures

    def status(self) -> dict[str, Any]:
        """The links, by host."""
        return {
            **self._net.stats(),
            "relays": len(self._relays),
            "rdma": rdma_status(self._rdma),
            "pieces": self._bulk.figures(),
            "paths": self._tell_paths(TellPaths()),
        }
