"""The agent's side of a host's model gateway: starts it, hands it the table of services, passes on what it tells.

A part of the server of the HTTP door. The gateway is begun with the first service that it has to route to, and outlives
the agent: one that begins connects to it again. It ends with an orderly stop of the host, and not where that starts
again at once. What it tells of demand goes to whoever leads; what models used it keeps itself. Bounds: it is begun
again after 1 s, 2 s, ... up to 60 s; 64 MiB wait for one that does not read.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from time import time
from typing import Any

from actorgrid.actors.ledger.client import LedgerClient
from actorgrid.actors.ledger.messages import Applied
from actorgrid.actors.links.messages import AskLeader
from actorgrid.actors.serving import control_frames as words
from actorgrid.actors.serving.gateway_reports import DemandNews
from actorgrid.actors.serving.messages import GatewayTold, ServiceWanted
from actorgrid.actors.serving.service_tables import PEERS_BEHIND_CALLS, is_routed, table_of
from actorgrid.actors.serving.table import (
    DemandReport,
    ServiceTable,
    decode_report,
    encode_report,
    encode_table,
)
from actorgrid.actors.work.frame_link import FrameLink
from actorgrid.errors import ActorGridError, MalformedMessage
from actorgrid.supervisors.server import Server

from .process_spec import FOLDER, WORKERS_MAX, GatewaySpec, socket_path, write_spec

SOCKET_BYTES_MAX = 100
"""Of the path of an AF_UNIX socket; a longer data directory has it among the other sockets."""
CLIENTS_OFFSET = 5
"""From the base port, where that is set: the port of clients."""
LOOK_S = 1.0
TABLE_AFTER_S = 0.05
"""Changes that come together make one table."""
BACKOFF_FIRST_S, BACKOFF_MAX_S = 1.0, 60.0
STOP_GRACE_S = 10.0
AGENTLESS_S = 600.0
"""Without any agent for so long it ends by itself: replicas of this host have ended long before."""
PASS_ON_S = 3.0
HEARD = ("service", "member", "api_key", "leader")


class GatewayKeeper:
    """The model gateway of the host of *server*, which follows the ledger."""

    def __init__(self, server: Server, ledger: LedgerClient) -> None:
        self._server = server
        self._ledger = ledger
        paths = server.host.paths
        folder = paths.data_dir / FOLDER
        too_long = len(os.fsencode(str(socket_path(folder)))) > SOCKET_BYTES_MAX
        self._folder: Path = paths.runtime_dir / FOLDER if too_long else folder
        self._link: FrameLink | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_greeted = False
        self._ticks = False
        self._is_due = False
        self._is_over = False
        self._sequence = 0
        self._told_table: ServiceTable | None = None
        self._news = DemandNews()
        self._failures = 0
        self._begin_at = 0.0
        self.client_address = ""

    @property
    def url(self) -> str:
        """Where clients come to it; empty: it does not run."""
        if not self.client_address:
            return ""
        alone = self._server.host.enrolment is None or self.client_address.startswith(("127.", "[::1]"))
        return f"{'http' if alone else 'https'}://{self.client_address}/v1"

    def applied(self, message: Applied) -> None:
        """Follow what the ledger tells."""
        if any(kind in HEARD for kind, _, _ in message.changes):
            self.look()

    def look(self) -> None:
        """Begin once there is something to route to; hand on what has changed."""
        if not self._ticks and any(map(is_routed, self._ledger.services.values())):
            self._ticks = True
            self._tick()
        if self._ticks and not self._is_due:
            self._is_due = True
            self._server.runtime.after(TABLE_AFTER_S, self._send_table)

    def stop(self) -> None:
        """End it in order; not where the host starts again at once."""
        self._is_over = True
        stays = self._server.host.restart_mark.exists()
        if self._link is not None:
            if not stays:
                self._link.send(words.frame_of(words.StopGateway(STOP_GRACE_S)))
            self._link.close()
            self._link = None
        elif self._process is not None and not stays:
            self._process.terminate()  # it has just been begun, and nobody would come to it

    # -- the process

    def _tick(self) -> None:
        if self._is_over:
            return
        if self._process is not None and self._process.poll() is not None:
            self._server.log.warning("the model gateway ended with %s", self._process.returncode)
            self._process = None
        if self._link is None and not self._connect() and self._process is None:
            self._begin()
        self._server.runtime.after(LOOK_S, self._tick)

    def _connect(self) -> bool:
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            stream.settimeout(LOOK_S)
            stream.connect(str(socket_path(self._folder)))
        except OSError:
            stream.close()
            return False
        self._link = FrameLink(self._server.runtime, self._frames, self._gone, words.CONTROL_FRAME_MAX)
        self._link.attach(stream)
        self._link.queue(words.frame_of(words.AgentHello(words.CONTROL_VERSION)))
        self._told_table = None
        return True

    def _begin(self) -> None:
        now = self._server.runtime.monotonic()
        if now < self._begin_at:
            return
        self._begin_at = now + min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(self._failures, 10))
        self._failures += 1
        host = self._server.host
        base, enrolment = int(host.settings.cluster.base_port), host.enrolment
        if enrolment is not None:
            base = enrolment.base_port
        address = host.settings.cluster.bind if enrolment is None else enrolment.address
        spec = GatewaySpec(
            folder=str(self._folder),
            security=str(host.paths.security_dir),
            data=str(host.paths.data_dir / FOLDER),
            listen=address,
            # One that could not listen there is tried on any port: better a gateway elsewhere than none.
            port=base + CLIENTS_OFFSET if base and self._failures <= 2 else 0,
            peer_listen="" if enrolment is None else address,
            # Others know it by the port of calls: it can be no other.
            peer_port=0 if enrolment is None else enrolment.calls_port + PEERS_BEHIND_CALLS,
            workers=host.settings.model_gateway.workers or min(WORKERS_MAX, len(os.sched_getaffinity(0))),
            agentless_s=AGENTLESS_S,
        )
        try:
            for folder in (self._folder, host.paths.data_dir / FOLDER):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(self._folder / "gateway.log", "ab") as lines:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "actorgrid.actors.model_gateway.main", write_spec(spec)],
                    stdin=subprocess.DEVNULL,
                    stdout=lines,
                    stderr=lines,
                    start_new_session=True,
                    cwd="/",
                )
        except OSError as error:
            self._server.log.warning("the model gateway cannot be started: %s", error)

    def _gone(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link, self._is_greeted, self.client_address = None, False, ""

    # -- what it is told

    def _send_table(self) -> None:
        self._is_due = False
        if self._link is None or not self._is_greeted:
            return
        ledger, host_id = self._ledger, self._server.host.host_id
        table = table_of(ledger.services, ledger.members, ledger.api_keys, host_id, 0, time())
        if table == self._told_table:
            return
        try:
            text = encode_table(replace(table, sequence=self._sequence + 1))
        except ActorGridError as error:  # the gateway goes on by the one before
            self._server.log.error("the model gateway is not told of services: %s", error)
            return
        self._told_table = table
        self._sequence += 1
        self._link.queue(words.frame_of(words.UseTable(text)))

    # -- what it tells

    def _frames(self, frames: list[list[Any]]) -> None:
        for frame in frames:
            try:
                self._take(words.parse_from_gateway(frame))
            except MalformedMessage as error:
                self._server.log.warning("the model gateway said what is no word of its: %s", error)

    def _take(self, message: words.FromGateway) -> None:
        match message:
            case words.GatewayHello():
                self._is_greeted, self._failures = True, 0
                self.client_address = message.client_address
                self._server.log.info("the model gateway serves at %s", self.url)
                self._send_table()
            case words.GatewayReport(text):
                self._reported(decode_report(text))
            case words.WakeService(service):
                self._server.spawn(self._wake(service))
            case words.TableRefused(refusal):
                self._server.log.error("the model gateway refuses the table of services: %s", refusal)

    def _reported(self, report: DemandReport) -> None:
        if not self._news.is_due(self._server.runtime.monotonic(), report.demands, self._ledger.services.values()):
            return
        text = encode_report(DemandReport(report.table_sequence, report.demands))
        self._server.spawn(self._pass_on(text))

    async def _pass_on(self, text: bytes) -> None:
        told = GatewayTold(self._server.host.host_id, text)
        await self._tell_leader(told, "gateway_told", {"report": text}, "demand")  # the next report says it again

    async def _wake(self, service: str) -> None:
        wanted = ServiceWanted(self._server.host.host_id, service)
        # It is in the next report as well.
        await self._tell_leader(wanted, "service_wanted", {"service": service}, f"that {service} is wanted")

    async def _tell_leader(
        self, message: GatewayTold | ServiceWanted, service: str, fields: dict[str, Any], what: str
    ) -> None:
        try:
            if self._ledger.leads:
                await self._server.call("cluster_manager", message, PASS_ON_S)
            elif self._server.host.enrolment is not None:
                await self._server.call("links", AskLeader(service, fields, PASS_ON_S), PASS_ON_S + 1)
        except ActorGridError as error:
            self._server.log.debug("%s is not told: %s", what, error)
