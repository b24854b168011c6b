"""The main process of a host's model gateway: keeps its workers, the last table, and the word with the agent.

    python -m actorgrid.actors.model_gateway.main SPEC

It carries no requests itself. An agent that ends leaves it as it is; the next one connects to its socket and goes on
(``serving/control_frames.py``). Workers that die are started again; their sockets stay open here meanwhile, so that who
connects waits a moment. What the gateways of this and other hosts tell each other goes through here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvloop
from setproctitle import setproctitle

from actorgrid.actors.files.identity import write_atomically
from actorgrid.actors.ledger.names import is_loopback
from actorgrid.actors.serving import control_frames as words
from actorgrid.actors.serving.table import (
    DemandReport,
    ServiceTable,
    decode_report,
    decode_table,
    encode_report,
)
from actorgrid.errors import ActorGridError, KeyUnusable, MalformedMessage, StorageError

from .budget_keeper import SOURCE as BUDGETS
from .budget_keeper import BudgetKeeper
from .gateway_totals import summed
from .peer_news import PeerNews
from .peer_tls import GatewayTls
from .process_spec import (
    LOG_NAME,
    TABLE_NAME,
    GatewaySpec,
    GatewayWorkerSpec,
    listening_socket,
    read_gateway_spec,
    socket_path,
    write_spec,
)
from .request_usage import UsageLedger
from .usage_store import UsageStore
from .worker_frames import FrameStream, frame_stream

log = logging.getLogger("actorgrid.model_gateway")
REPORT_S = 1.0
LAST_WORD_S = 1.0
BACKOFF_S, BACKOFF_MAX_S = 0.1, 5.0
AGENTS_MAX = 4


class _WorkerProcess:
    """One worker, and the sockets that it and its successors serve."""

    def __init__(self, number: int, clients: socket.socket, peers: socket.socket | None) -> None:
        self.number = number
        self.clients = clients
        self.peers = peers
        self.process: subprocess.Popen[bytes] | None = None
        self.stream: FrameStream | None = None
        self.report: DemandReport | None = None
        self.began = 0.0
        self.failures = 0


class GatewayMain:
    """The process."""

    def __init__(self, spec: GatewaySpec) -> None:
        self._spec = spec
        self._folder = Path(spec.folder)
        self._table: ServiceTable | None = None
        self._table_text = b""
        self._workers: list[_WorkerProcess] = []
        self._agents: dict[int, FrameStream] = {}
        self._agent_number = 0
        self._heard_at = time.monotonic()
        data = Path(spec.data or spec.folder)
        self._usage = UsageLedger()
        self._usage_store = UsageStore(data)
        self._is_over = asyncio.Event()
        self._is_stopping = False
        self._grace_s = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._tls = GatewayTls(Path(spec.security), lambda: self._table.members if self._table is not None else ())
        self._peer_news = PeerNews(self._tls)
        self._budgets = BudgetKeeper(data, lambda body: self._peer_news.tell(BUDGETS, body), self._tell_worker)

    async def run(self) -> None:
        """Serve until told to stop."""
        self._listen()
        self._recall_table()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, 0.0)
        for worker in self._workers:
            await self._start(worker)
        server = await loop.create_unix_server(self._agent, str(self._own_socket()))
        socket_path(self._folder).chmod(0o600)
        lasting = (self._report(), self._peer_news.run(), self._budgets.run())
        tasks = [asyncio.create_task(each) for each in lasting]
        await self._is_over.wait()
        server.close()
        await self._end_workers()
        for task in [*tasks, *self._tasks]:
            task.cancel()
        self._keep_usage()
        self._usage_store.close()
        self._budgets.close()
        self._send_report()
        await asyncio.gather(*(each.finished(LAST_WORD_S) for each in list(self._agents.values())))
        with suppress(FileNotFoundError):
            socket_path(self._folder).unlink()

    # -- sockets

    def _listen(self) -> None:
        spec = self._spec
        has_tls = not is_loopback(spec.listen)
        if has_tls and self._tls.clients is None:
            raise KeyUnusable(
                "clients of other machines are spoken to by TLS, and this host has no certificate",
                asked=f"listen on {spec.listen}",
                hint="begin or join a cluster (actorgrid up --listen), or listen on 127.0.0.1",
            )
        port, peer_port = spec.port, spec.peer_port
        has_peers = bool(spec.peer_listen) and self._tls.server is not None
        for number in range(spec.workers):
            clients = listening_socket(spec.listen, port)
            port = clients.getsockname()[1]
            peers = None
            if has_peers:
                peers = listening_socket(spec.peer_listen, peer_port)
                peer_port = peers.getsockname()[1]
            self._workers.append(_WorkerProcess(number, clients, peers))
        self._client_address = f"{spec.listen}:{port}"
        self._peer_address = f"{spec.peer_listen}:{peer_port}" if has_peers else ""
        self._has_tls = has_tls

    def _own_socket(self) -> Path:
        path = socket_path(self._folder)
        with suppress(FileNotFoundError):
            path.unlink()
        return path

    # -- workers

    async def _start(self, worker: _WorkerProcess) -> None:
        ours, theirs = socket.socketpair()
        spec = GatewayWorkerSpec(
            control=theirs.fileno(),
            clients=worker.clients.fileno(),
            peers=-1 if worker.peers is None else worker.peers.fileno(),
            security=self._spec.security,
            has_tls=self._has_tls,
            log_path=str(self._folder / LOG_NAME) if self._spec.logs_requests else "",
        )
        fds = [fd for fd in (spec.control, spec.clients, spec.peers) if fd >= 0]
        worker.process = subprocess.Popen(
            [sys.executable, "-m", "actorgrid.actors.model_gateway.worker", write_spec(spec)],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        ours.setblocking(False)
        worker.began = time.monotonic()
        worker.stream = await frame_stream(
            ours, lambda frame: self._worker_told(worker, frame), lambda: self._worker_ended(worker)
        )
        self._budgets.worker_began(worker.number)
        if self._table_text:
            worker.stream.send(["table", self._table_text])

    def _tell_worker(self, number: int, frame: list[Any]) -> None:
        stream = self._workers[number].stream
        if stream is not None:
            stream.send(frame)

    def _worker_ended(self, worker: _WorkerProcess) -> None:
        worker.stream, worker.report = None, None
        self._budgets.worker_ended(worker.number)
        if self._is_stopping:
            return
        lived_s = time.monotonic() - worker.began
        worker.failures = 0 if lived_s > 60 else worker.failures + 1
        log.warning("worker %d of the model gateway ended after %.0f s; starting another", worker.number, lived_s)
        task = asyncio.create_task(self._start_again(worker))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start_again(self, worker: _WorkerProcess) -> None:
        if worker.process is not None:
            worker.process.kill()  # it may have closed its socket and live on
            worker.process.wait()
        await asyncio.sleep(min(BACKOFF_MAX_S, BACKOFF_S * 2 ** min(worker.failures, 10)))
        if not self._is_stopping:
            await self._start(worker)

    async def _end_workers(self) -> None:
        self._is_stopping = True
        for worker in self._workers:
            if worker.stream is not None:
                worker.stream.send(["drain"])
            worker.clients.close()
            if worker.peers is not None:
                worker.peers.close()
        until = time.monotonic() + self._grace_s + LAST_WORD_S
        for worker in self._workers:
            if worker.stream is not None:
                await worker.stream.gone(until - time.monotonic())
        for worker in self._workers:
            if worker.process is None:
                continue
            try:
                await asyncio.to_thread(worker.process.wait, max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()

    def _worker_told(self, worker: _WorkerProcess, frame: list[Any]) -> None:
        match frame:
            case ["report", bytes(text)]:
                worker.report = decode_report(text)
                self._usage.add(worker.report.usage)
            case ["wake", str(service)]:
                self._tell_agents(words.WakeService(service))
            case ["spent", str(month), list(rows)]:
                self._budgets.worker_told(worker.number, month, rows)
            case ["news", bytes(body)]:
                source = f"worker {worker.number}"
                self._pass_news(source, body, worker)
                self._peer_news.tell(source, body)
            case ["peer_news", str(host), bytes(body)]:
                for source, news in PeerNews.read(body):
                    if source == BUDGETS:
                        self._budgets.heard(news)
                        continue
                    self._pass_news(f"{host} {source}", news, None)

    def _pass_news(self, source: str, body: bytes, told_by: _WorkerProcess | None) -> None:
        for worker in self._workers:
            if worker is not told_by and worker.stream is not None:
                worker.stream.send(["news", source, body])

    # -- the agent

    def _agent(self) -> FrameStream:
        self._agent_number += 1
        number = self._agent_number
        while len(self._agents) >= AGENTS_MAX:
            self._agents.pop(next(iter(self._agents))).close()
        stream = self._agents[number] = FrameStream(
            lambda frame: self._agent_told(number, frame), lambda: self._agent_gone(number)
        )
        return stream

    def _agent_gone(self, number: int) -> None:
        self._agents.pop(number, None)

    def _agent_told(self, number: int, frame: list[Any]) -> None:
        self._heard_at = time.monotonic()
        match words.parse_from_agent(frame):
            case words.AgentHello():
                hello = words.GatewayHello(words.CONTROL_VERSION, os.getpid(), self._client_address, self._peer_address)
                self._agents[number].send(words.frame_of(hello))
            case words.UseTable(text):
                self._take_table(number, text)
            case words.StopGateway(grace_s):
                self._stop(grace_s)

    def _take_table(self, number: int, text: bytes) -> None:
        try:
            table = decode_table(text)
        except MalformedMessage as error:
            log.error("the table of services was refused: %s", error)
            self._agents[number].send(words.frame_of(words.TableRefused(str(error))))
            return
        if text == self._table_text:
            return
        self._use(table, text)
        try:
            write_atomically(self._folder / TABLE_NAME, text)
        except ActorGridError as error:
            log.warning("the table of services is not kept: %s", error)

    def _use(self, table: ServiceTable, text: bytes) -> None:
        self._table, self._table_text = table, text
        self._peer_news.use(table.host, table.peers)
        self._budgets.use(table)
        for worker in self._workers:
            if worker.stream is not None:
                worker.stream.send(["table", text])

    def _recall_table(self) -> None:
        """Begin with the last table: there may be no agent."""
        try:
            text = (self._folder / TABLE_NAME).read_bytes()
            self._use(decode_table(text), text)
        except FileNotFoundError:
            pass
        except (OSError, MalformedMessage) as error:
            log.warning("the last table of services cannot be used: %s", error)

    def _tell_agents(self, message: words.FromGateway) -> None:
        for stream in self._agents.values():
            stream.send(words.frame_of(message))

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(REPORT_S)
            self._tls.look()
            self._keep_usage()
            self._send_report()
            if not self._agents and time.monotonic() - self._heard_at > self._spec.agentless_s:
                log.warning("no agent has spoken to this gateway for %.0f s: it ends", self._spec.agentless_s)
                self._stop(0.0)

    def _send_report(self) -> None:
        if not self._agents:
            return
        demands = summed(worker.report for worker in self._workers if worker.report is not None)
        sequence = 0 if self._table is None else self._table.sequence
        self._tell_agents(words.GatewayReport(encode_report(DemandReport(sequence, demands))))

    def _keep_usage(self) -> None:
        rows = self._usage.take()
        if not rows:
            return
        try:
            self._usage_store.add(rows, time.time())
        except StorageError as error:
            self._usage.add(rows)
            log.warning("%s", error)

    def _stop(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._is_stopping = True
        self._is_over.set()


def main() -> None:
    """The process' own main."""
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    setproctitle("actorgrid: model gateway")

    async def run(spec: GatewaySpec) -> None:
        await GatewayMain(spec).run()

    try:
        uvloop.run(run(read_gateway_spec(sys.argv[1])))
    except (ActorGridError, OSError) as error:
        log.error("the model gateway cannot start: %s", error)
        sys.exit(1)


if __name__ == "__main__":
    main()
