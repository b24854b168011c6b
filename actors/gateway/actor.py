"""Gateway: the HTTP door of a host, in a thread of its own beside the server's."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actorgrid.actors.files.blob_store import BlobStore
from actorgrid.errors import ActorGridError, CallTimeout, PortInUse, StartFailed
from actorgrid.supervisors.runtime import Waiter
from actorgrid.supervisors.server import handles

from ..files.identity import read_token
from ..ledger.client import LedgerClient, LedgerFollower
from ..ledger.messages import Applied, LedgerSnapshot
from ..links.actor_relays import ActorRelays
from ..links.lone_actor_door import open_actor_door
from ..replication.messages import ChangesLost, StateChanged, UnwatchPrefix, WatchPrefix
from ..security.audit_records import AuditFacts
from ..work.credentials import read_key
from .audit_head_reports import AuditHeadReports
from .messages import PlaceSecrets, ReleaseSecrets
from .secret_releases import SecretReleases
from .server.application import GatewayApp
from .server.auth import TokenGate, WorkGate
from .server.bridge import Bridge
from .server.hub import Hub, Resynced
from .server.listener import listen, remember, remembered, url_of
from .server.loop import DRAIN_S, LoopThread

if TYPE_CHECKING:
    from ..model_gateway.gateway_keeper import GatewayKeeper
    from .grpc_door.door_keeper import GrpcKeeper
    from .server.tls_listener import Certificate

START_TIMEOUT_S = 20.0
REBIND_S = 3.0
"""How long a restarted gateway waits for the port of the one before it."""
PORT_FILE = "gateway.port"
LOOK_S = 5.0
"""How often it is looked whether the certificate was renewed."""


class Gateway(LedgerFollower):
    """Serves HTTP on loopback, and HTTPS on a cluster's address; keeps nothing that a restart could lose.

    Whoever holds an event stream when the process dies connects again with Last-Event-ID.
    """

    name = "gateway"
    max_handler_s = 5.0

    async def start(self) -> None:
        """Listen and serve. Raises PortInUse, StartFailed or DataDirUnusable; the ledger is followed once it is up."""
        paths = self.host.paths
        self._thread: LoopThread | None = None
        self._bridge: Bridge | None = None
        self._app: GatewayApp | None = None
        self._models: GatewayKeeper | None = None
        self._grpc: GrpcKeeper | None = None
        self._actor_door: ActorRelays | None = None
        self._prefixes: dict[str, int] = {}
        self._watched: set[str] = set()
        self._adjusting = False
        self._unadjusted = False
        self._await_adjusted: list[Waiter] = []
        self._ledger = LedgerClient(self, self._on_snapshot, self._on_applied, jobs="told")
        self._secrets = SecretReleases(self, self._ledger, self._tell_audit)
        self._gate = TokenGate(
            read_token(paths.token_file),
            paths.token_file,
            lambda key_id: self._ledger.api_keys.get(key_id),
            lambda: self._ledger.is_filled,
        )
        self._gate.work = WorkGate(
            read_key(paths.work_key_file), self.host.host_id, lambda work_id: self._ledger.allocations.get(work_id)
        )
        BlobStore(paths.blobs_dir).clear_drafts()
        certificate, secured = None, None
        if self.host.enrolment is not None:
            from .server.tls_listener import Certificate, TlsListener  # with X.509: 3 MB that a host alone does without

            certificate = Certificate(paths.security_dir)
            secured = TlsListener(await self._listen_again(self._listen_afar), certificate)
            self.every(LOOK_S, lambda: self._look(certificate))
        try:
            sock = await self._listen()
        except ActorGridError:
            if secured is not None:
                secured.sock.close()
            raise
        self.url = url_of(sock)
        afar = self.url if secured is None else url_of(secured.sock, "https")
        bridge = self._bridge = Bridge(self)
        hub = Hub()
        ready = Waiter()
        heads = AuditHeadReports(self, self._ledger)
        door_secret = secrets.token_hex(32) if self.host.settings.grpc.listen else ""

        def make_app() -> GatewayApp:
            app = GatewayApp(
                self.host,
                bridge,
                hub,
                self._gate,
                self._watch_prefix,
                self._unwatch_prefix,
                self._ledger,
                afar,
                certificate,
            )
            app.door_secret = door_secret
            if self.host.enrolment is not None:  # a host alone would hold the heads beside the log that they are of
                app.audit_signed = lambda log: bridge.post(lambda: heads.signed(log))
            return app

        def on_ready(app: GatewayApp) -> None:
            self._app = app
            ready.set(None)

        def on_death(error: BaseException) -> None:
            if ready.done:
                self.runtime.crash(error)
            else:
                ready.fail(StartFailed(f"the HTTP loop did not come up: {error!r}", hint="see the agent's log"))

        self._thread = LoopThread(sock, bridge, hub, make_app, on_ready, on_death, secured)
        timer = self.runtime.after(
            START_TIMEOUT_S, lambda: ready.fail(CallTimeout("the HTTP loop did not come up in time"))
        )
        self._thread.start()
        try:
            await ready
        except ActorGridError:
            self.stop("start failed")
            raise
        finally:
            timer.cancel()
        self._actor_door = open_actor_door(self)
        remember(paths.boot_dir(self.host.boot_id) / PORT_FILE, int(sock.getsockname()[1]))
        self.log.info("listening on %s", self.url if afar == self.url else f"{self.url} and {afar}")
        self.spawn(self._ledger.start())
        if door_secret:
            from .grpc_door.door_keeper import GrpcKeeper

            self._grpc = GrpcKeeper(self, self.url, door_secret)
            self._grpc.start()

    async def _listen(self) -> socket.socket:
        """Make the listening socket: on the port this boot had before, if there was one, as clients know that."""
        cluster = self.host.settings.cluster
        before = remembered(self.host.paths.boot_dir(self.host.boot_id) / PORT_FILE)
        if before is None:
            return listen(cluster.bind, cluster.base_port)
        return await self._listen_again(lambda: listen(cluster.bind, before))

    def _listen_afar(self) -> socket.socket:
        enrolment = self.host.enrolment
        assert enrolment is not None, "only a host of a cluster is reached from other machines"
        return listen(enrolment.address, enrolment.https_port, "cluster.listen")

    async def _listen_again(self, bind: Callable[[], socket.socket]) -> socket.socket:
        """Call *bind* until the gateway before this one has let go of the port; gives its result."""
        deadline = self.runtime.monotonic() + REBIND_S
        while True:
            try:
                return bind()
            except PortInUse:
                if self.runtime.monotonic() > deadline:
                    raise
            await self.sleep(0.05)

    def _look(self, certificate: Certificate) -> None:
        if certificate.look():
            self.log.info("HTTPS shows the renewed certificate")

    def stop(self, reason: str) -> None:
        """Stop listening, answer or cut off what is under way, and end the thread: at most twice ``DRAIN_S``."""
        if self._models is not None:
            self._models.stop()
            self._models = None
        if self._grpc is not None:
            self._grpc.stop()  # before what it translates to
            self._grpc = None
        if self._actor_door is not None:
            self._actor_door.close()
            self._actor_door = None
        if self._thread is not None:
            self._thread.finish()
            self._thread.join(2 * DRAIN_S + 0.5)
            if self._thread.is_alive():
                self.log.warning("the HTTP loop did not end in time; it ends with the process")
            self._thread = None
        if self._bridge is not None:
            self._bridge.close()
            self._bridge = None

    def peer_restarted(self, name: str) -> None:
        """Follow Consensus, DistributedState and the like again after a restart of theirs."""
        super().peer_restarted(name)
        if name == "distributed_state" and self._watched:
            self.spawn(self._watch_again())

    # -- what happens, for those who listen

    def _on_applied(self, message: Applied) -> None:
        if any(kind in ("trust", "leader") for kind, _, _ in message.changes):
            self._secrets.look()
        if self._bridge is not None:
            self._bridge.tell(message)
        if self._models is not None:
            self._models.applied(message)
        elif self._ledger.services:
            self._keep_models()

    def _on_snapshot(self, snapshot: LedgerSnapshot) -> None:
        if self._bridge is not None:
            self._bridge.tell(Resynced(snapshot.index))
        if self._models is not None or self._ledger.services:
            self._keep_models()

    def _keep_models(self) -> None:
        """Keep the model gateway of this host. What does that is loaded with the first service."""
        if self._models is None:
            from ..model_gateway.gateway_keeper import GatewayKeeper

            self._models = GatewayKeeper(self, self._ledger)
        self._models.look()

    # -- secrets

    @handles(PlaceSecrets)
    async def _place_secrets(self, request: PlaceSecrets) -> list[str]:
        return await self._secrets.place(request.attempt_id, Path(request.folder))

    @handles(ReleaseSecrets)
    async def _release_secrets(self, request: ReleaseSecrets) -> dict[str, str]:
        return await self._secrets.release(request.attempt_id, request.host_id)

    def _tell_audit(self, facts: AuditFacts, kept: Callable[[], None]) -> bool:
        bridge, app = self._bridge, self._app
        if bridge is None or app is None:
            return False
        app.audit.add(facts, lambda: bridge.post(kept))
        return True

    @handles(StateChanged)
    def _state_changed(self, change: StateChanged) -> None:
        if self._bridge is not None:
            self._bridge.tell(change)

    @handles(ChangesLost)
    def _changes_lost(self, lost: ChangesLost) -> None:
        if self._bridge is not None:
            self._bridge.tell(lost)

    async def _watch_prefix(self, prefix: str) -> None:
        """Count one more client that watches *prefix*; asks DistributedState when it was not watched yet."""
        self._prefixes[prefix] = self._prefixes.get(prefix, 0) + 1
        try:
            await self._adjust_watches()
        except ActorGridError:
            self._forget_prefix(prefix)
            raise

    def _unwatch_prefix(self, prefix: str) -> None:
        self._forget_prefix(prefix)
        self.spawn(self._adjust_watches())

    def _forget_prefix(self, prefix: str) -> None:
        left = self._prefixes.get(prefix, 0) - 1
        if left > 0:
            self._prefixes[prefix] = left
        else:
            self._prefixes.pop(prefix, None)

    async def _adjust_watches(self) -> None:
        """Make what is asked of DistributedState fit what clients watch; one at a time, the others wait for it."""
        self._unadjusted = True
        if self._adjusting:
            waiter = Waiter()
            self._await_adjusted.append(waiter)
            await waiter
            return
        self._adjusting = True
        failure: ActorGridError | None = None
        try:
            while self._unadjusted:
                self._unadjusted = False
                await self._adjust_once()
        except ActorGridError as error:
            failure = error
            raise
        finally:
            self._adjusting = False
            waiting, self._await_adjusted = self._await_adjusted, []
            for waiter in waiting:
                if failure is None:
                    waiter.set(None)
                else:
                    waiter.fail(failure)

    async def _adjust_once(self) -> None:
        # Only the shortest are asked for: under overlapping watches each change would come more than once.
        for prefix in sorted(shortest(self._prefixes) - self._watched):
            await self.call("distributed_state", WatchPrefix(prefix))
            self._watched.add(prefix)
        for prefix in sorted(self._watched - shortest(self._prefixes)):
            self._watched.discard(prefix)
            self.cast("distributed_state", UnwatchPrefix(prefix))

    async def _watch_again(self) -> None:
        """Watch again, and have the clients' streams read what changed: a restarted DistributedState knows no
        watchers.
        """
        for prefix in sorted(self._watched):
            await self.call("distributed_state", WatchPrefix(prefix), 10.0)
        if self._bridge is not None:
            self._bridge.tell(ChangesLost())

    # -- how we are

    def metrics(self) -> dict[str, float]:
        """Calls under way and who listens; requests are counted by route in ``/metrics`` itself."""
        if self._bridge is None or self._app is None:
            return {}
        spans = {} if self._app.spans is None else self._app.spans.figures()
        return {
            **spans,
            "gateway_calls_in_flight": self._bridge.in_flight,
            "gateway_event_streams": self._app.hub.listeners,
            "gateway_followed_outputs": self._app.followers,
            "gateway_connections_unproven": self._app.connections.unproven,
            "gateway_connections_closed_total": self._app.connections.closed_total,
            "gateway_connections_refused_total": self._app.connections.refused_total,
            "gateway_secrets_released_total": self._secrets.released_total,
            "gateway_relays": len(self._app.relays),
            "gateway_relay_streams": self._app.relays.streams,
            "gateway_relay_streams_opened_total": self._app.relays.opened_total,
        }

    def status(self) -> dict[str, Any]:
        """The addresses on which the gateway listens, and how busy it is."""
        found: dict[str, Any] = {"url": self.url, "pid": os.getpid(), "ledger_index": self._ledger.index}
        if self._models is not None:
            found["models_url"] = self._models.url
        if self._grpc is not None:
            found["grpc"] = self._grpc.address or self._grpc.problem or "starting"
        if self._app is not None:
            found |= {
                "connections": len(self._app.connections),
                "requests": self._app.serving,
                "event_streams": self._app.hub.listeners,
            }
        return found


def shortest(prefixes: Any) -> set[str]:
    """The prefixes that no other one covers."""
    kept: list[str] = []
    for prefix in sorted(prefixes):
        if not kept or not prefix.startswith(kept[-1]):
            kept.append(prefix)
    return set(kept)
