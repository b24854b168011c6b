"""The ledger of three hosts, one process each, on loopback: Consensus with its real log, links and mutual TLS.

Nothing else of an agent is there: what is measured is the road of a command from Consensus' mailbox to its answer.
Every process has a client of its own, so that commands can be given to the leader or to a follower.
"""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from cryptography import x509

from actorgrid.actors.consensus.actor import Consensus
from actorgrid.actors.consensus.raft_links import VoterPlan
from actorgrid.actors.host.context import HostContext
from actorgrid.actors.ledger.commands import AddMember, FoundCluster, SetSetting
from actorgrid.actors.ledger.messages import Propose, Query
from actorgrid.actors.security.certificates import fingerprint
from actorgrid.configs.paths import HostPaths
from actorgrid.configs.schema import Settings
from actorgrid.errors import ActorGridError
from actorgrid.supervisors.inline import InlineNode
from actorgrid.supervisors.server import Server
from actorgrid.transports.peer.net import PeerNet
from actorgrid.transports.peer.tls import PeerIdentity
from tests.processes import until
from tests.transports.peer_certificates import Authority

NODES = (1, 2, 3)
ADDRESS = "127.0.0.1"
AT = 1_700_000_000.0
CALL_S = 30.0
PAUSE_S = 0.005
VALUE = "x" * 100


def host_id(node: int) -> str:
    """Of the node's host."""
    return f"host{node}"


class Asker(Server):
    """The client beside each Consensus."""

    name = "asker"

    async def ask(self, request: Propose | Query) -> Any:
        """Repeated, as every client does, until it is answered."""
        while True:
            try:
                return await self.call("consensus", request, CALL_S)
            except ActorGridError:  # leaders change on a busy machine
                await self.sleep(PAUSE_S)

    async def propose(self, command: dict[str, Any], session: str, seq: int) -> dict[str, Any]:
        """Its result."""
        result: dict[str, Any] = (await self.ask(Propose(command, session, seq))).result
        return result

    async def calls(self, count: int, in_flight: int, reads: bool) -> tuple[float, list[float]]:
        """Make so many; gives seconds in all, and of each."""
        numbers = iter(range(count))
        samples: list[float] = []
        started = time.perf_counter()
        for worker in range(in_flight):
            self.spawn(self._worker(f"{self.me.address}-{time.monotonic_ns()}-{worker}", numbers, samples, reads))
        while len(samples) < count:
            await self.sleep(PAUSE_S / 5)
        return time.perf_counter() - started, samples

    async def _worker(self, session: str, numbers: Any, samples: list[float], reads: bool) -> None:
        for seq, _ in enumerate(numbers, 1):
            began = time.perf_counter()
            if reads:
                await self.ask(Query("settings", linearizable=True))
            else:
                await self.propose(SetSetting(f"key{seq % 8}", VALUE, "bench", at=AT), session, seq)
            samples.append(time.perf_counter() - began)


class Station:
    """One process: does what comes over *control*, a request at a time."""

    def __init__(self, control: Connection, node: int, ports: dict[int, int], identity: PeerIdentity, folder: Path):
        self.control = control
        self.node = node
        self.ports = ports
        self.identity = identity
        self.folder = folder
        self.loop = InlineNode(real_time=True)
        self.over = False

    def run(self, founding: bool, seeds: dict[str, Any]) -> None:
        """Until the other end of *control* is closed."""
        logging.getLogger("actorgrid").addHandler(logging.NullHandler())  # that a peer is away is no news here
        paths = HostPaths(self.folder / host_id(self.node))
        paths.make()
        context = HostContext(paths, Settings(), host_id(self.node), host_id(self.node), 1, f"boot{time.time_ns()}")
        context.voter = VoterPlan(self.node, self._net, founding=founding, seeds=seeds)
        self.consensus = self.loop.add(Consensus, context)
        asker = self.loop.add(Asker, context)
        assert isinstance(self.consensus, Consensus)
        assert isinstance(asker, Asker)
        self.asker = asker
        self.control.send("up")
        self.loop.watch(self.control.fileno(), self._asked)
        self.loop.run_until(lambda: self.over, 3600.0)

    def _net(self, loop: Any, resolve: Any, admit: Any, on_cast: Any, on_stream: Any) -> PeerNet:
        def refuse(*_: Any) -> None:
            raise AssertionError("nobody calls here")

        listen = (ADDRESS, self.ports[self.node])
        return PeerNet(
            loop, self.identity, listen, resolve=resolve, admit=admit, on_call=refuse, on_cast=on_cast,
            on_stream=on_stream,
        )  # fmt: skip

    def _asked(self) -> None:
        try:
            verb, arguments = self.control.recv()
        except EOFError:
            self.over = True
            return
        if verb == "status":
            status = self.consensus.status()
            self.control.send((status, dict(self.consensus._replica.ledger.members), time.process_time()))
        elif verb == "propose":
            self.asker.spawn(self._answer(lambda: self.asker.propose(*arguments)))
        else:
            self.asker.spawn(self._answer(lambda: self.asker.calls(*arguments)))

    async def _answer(self, work: Callable[[], Any]) -> None:
        self.control.send(await work())


class Trio:
    """The three of them, formed to a cluster; use as a context."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        authority = Authority()
        self._identities = {node: authority.identity(folder, "bench", host_id(node)) for node in NODES}
        with ExitStack() as held:
            taken = {node: held.enter_context(socket.create_server((ADDRESS, 0))) for node in NODES}
            self._ports = {node: int(sock.getsockname()[1]) for node, sock in taken.items()}
        self._controls: dict[int, Connection] = {}
        self._processes: dict[int, BaseProcess] = {}
        self._seqs = itertools.count(1)

    def __enter__(self) -> Trio:
        self.start(1, founding=True)
        self.propose(1, FoundCluster("bench", *self._record(1), AT))
        for node in NODES[1:]:
            self.propose(1, AddMember(*self._record(node), AT))
            self.start(node, seeds=self.status(1)[1])
        until(lambda: set(self.status(1)[0]["voters"]) == set(NODES), "three voters")
        return self

    def __exit__(self, *_: object) -> None:
        for node in list(self._controls):
            self._controls.pop(node).close()
            self._processes[node].join(20)

    def _record(self, node: int) -> tuple[str, dict[str, Any], str]:
        (written,) = self.folder.glob(f"{host_id(node)}-*.pem")
        key = fingerprint(x509.load_pem_x509_certificate(written.read_bytes()))
        return host_id(node), {"raft": f"{ADDRESS}:{self._ports[node]}"}, key

    def start(self, node: int, founding: bool = False, seeds: dict[str, Any] | None = None) -> None:
        """Start a node's process; returns when its Consensus is ready."""
        forking = multiprocessing.get_context("fork")  # TLS contexts cannot be pickled
        ours, theirs = forking.Pipe()
        others = [*self._controls.values(), ours]
        process = forking.Process(target=self._child, args=(node, theirs, others, founding, seeds or {}), daemon=True)
        process.start()
        theirs.close()
        self._controls[node], self._processes[node] = ours, process
        assert ours.recv() == "up"

    def _child(self, node: int, control: Connection, others: list[Connection], founding: bool, seeds: Any) -> None:
        for other in others:
            other.close()
        Station(control, node, self._ports, self._identities[node], self.folder).run(founding, seeds)

    def kill(self, node: int) -> None:
        """SIGKILL."""
        self._controls.pop(node).close()
        self._processes[node].kill()
        self._processes[node].join()

    # -- asking

    def ask(self, node: int, verb: str, *arguments: Any) -> Any:
        """One request to a node's process, and its answer."""
        self._controls[node].send((verb, arguments))
        return self._controls[node].recv()

    def status(self, node: int) -> Any:
        """Where its ledger stands, its members, and the seconds of CPU it has used."""
        return self.ask(node, "status")

    def propose(self, node: int, command: dict[str, Any]) -> dict[str, Any]:
        """Commit one command."""
        result: dict[str, Any] = self.ask(node, "propose", command, f"trio-{next(self._seqs)}", 1)
        return result

    def calls(self, node: int, count: int, in_flight: int, reads: bool = False) -> tuple[float, list[float]]:
        """Writes or linearizable reads by *node*'s client: how many a second, and how long each took."""
        seconds, samples = self.ask(node, "calls", count, in_flight, reads)
        return count / seconds, samples

    def leader(self) -> int:
        """Who leads, as soon as one of those that run says that it does."""

        def leading() -> int | None:
            return next((node for node in self._controls if self.status(node)[0]["role"] == "leader"), None)

        found: int = until(leading, "a leader")
        return found
