"""Sends what is in line: a part of a server, which goes on meanwhile; each try is in one of four threads.

They are made with the first message. Where a target leads is read anew for every try, so that a file which the operator
has mended counts at once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from time import time

from actorgrid.configs.notifications_section import NotificationsSection
from actorgrid.errors import ActorGridError
from actorgrid.notification_words import shown_target
from actorgrid.supervisors.background import Background
from actorgrid.supervisors.runtime import Timer
from actorgrid.supervisors.server import Server

from .allowed_addresses import networks_of
from .deliveries import Deliveries, Delivery, DeliveryState, SendResult, SettledDelivery
from .destinations import FILE_NAME, read_operator_file
from .outgoing import OutgoingMessage, one_line

THREADS = 4
LOOK_S = 30.0
"""The clock is looked at so often at least while something waits: it may have been set."""


class MessageSender:
    """Sends for *server*. *settled* is told of each message that was sent or given up; *waiting_max* wait at most."""

    def __init__(self, server: Server, settled: Callable[[SettledDelivery], None], waiting_max: int) -> None:
        self._server = server
        self._settled = settled
        self._deliveries = Deliveries(Random().random, waiting_max)
        self._idle = [Background(server.runtime, f"notify{number}") for number in range(THREADS)]
        self._timer: Timer | None = None
        self.sent_total = 0
        self.failed_total = 0
        self.tries_total = 0

    def __len__(self) -> int:
        return len(self._deliveries)

    def ids(self) -> list[str]:
        """What is in line."""
        return self._deliveries.ids()

    def waiting(self) -> list[Delivery]:
        """The messages in line."""
        return self._deliveries.waiting()

    def put(self, delivery: Delivery) -> bool:
        """Send a message; what is in line already stays as it is. Gives whether there was room."""
        taken = self._deliveries.put(delivery)
        self._look()
        return taken

    def drop(self, delivery_id: str) -> None:
        """Forget a message."""
        self._deliveries.drop(delivery_id)

    def state_of(self, delivery_id: str) -> DeliveryState | None:
        """How far a message is."""
        return self._deliveries.state_of(delivery_id)

    def _look(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = time()
        for delivery in self._deliveries.due(now, len(self._idle)):
            self._server.spawn(self._send(delivery, self._idle.pop()))
        at = self._deliveries.next_at()
        if at is not None and self._idle:
            self._timer = self._server.runtime.after(min(LOOK_S, max(0.0, at - now)), self._look)

    async def _send(self, delivery: Delivery, thread: Background) -> None:
        settings = self._server.host.settings.notifications
        path = operator_file(settings, self._server.host.paths.data_dir)
        host_name = self._server.host.hostname
        self.tries_total += 1
        try:
            result = await thread.run(lambda: send(delivery.target, delivery.message, settings, path, host_name))
        finally:
            self._idle.append(thread)
        ended = self._deliveries.done(delivery, result, time(), settings.give_up_s)
        if result.reason:
            self._server.log.warning(
                "%s was not told of %s: %s",
                shown_target(delivery.target)[:80],
                delivery.message.message_id,
                result.reason,
            )
        for done in ended:
            self.sent_total += not done.failure
            self.failed_total += bool(done.failure)
            self._settled(done)
        self._look()


def operator_file(settings: NotificationsSection, data_dir: Path) -> Path:
    """Where the operator's file is."""
    return Path(settings.file) if settings.file else data_dir / FILE_NAME


def send(
    target: str, message: OutgoingMessage, settings: NotificationsSection, path: Path, host_name: str
) -> SendResult:
    """Try once to send *message* to *target*. Never raises: who leads would fall with it, and the next one after it."""
    try:
        return _send(target, message, settings, path, host_name)
    except Exception as error:  # noqa: BLE001 - a full disk, an odd address: it is tried again, and shown
        return SendResult(one_line(f"it cannot be sent: {type(error).__name__}: {error}"))


def _send(
    target: str, message: OutgoingMessage, settings: NotificationsSection, path: Path, host_name: str
) -> SendResult:
    try:
        operator = read_operator_file(path)
        destination = operator.destination(target)
    except ActorGridError as error:  # it may be mended, or the next host that leads have it
        return SendResult(error.message)
    if destination.mail_to:
        from .mail import send_mail

        return send_mail(message, destination, operator, host_name, settings.timeout_s)
    from .webhook import send_webhook

    allowed = networks_of(settings.allowed_networks)
    return send_webhook(message, destination, allowed, settings.ca_file, settings.timeout_s)
