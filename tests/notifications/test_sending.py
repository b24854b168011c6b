"""What is really sent, to a real server on loopback and through a real command."""

from __future__ import annotations

import base64
import errno
import hashlib
import hmac
import json
import socket
import ssl
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.notifications.allowed_addresses import networks_of
from actorgrid.actors.notifications.deliveries import SendResult
from actorgrid.actors.notifications.destinations import Destination, OperatorFile
from actorgrid.actors.notifications.mail import send_mail
from actorgrid.actors.notifications.outgoing import OutgoingMessage
from actorgrid.actors.notifications.sending import send
from actorgrid.actors.notifications.signature import key_bytes
from actorgrid.actors.notifications.webhook import send_webhook
from actorgrid.configs.notifications_section import NotificationsSection
from tests.notifications.test_targets import KEY
from tests.self_signed import write_self_signed

MESSAGE = OutgoingMessage("a.7.0", "job.failed", 1_700_000_000.0, "job a has failed", {"job_id": "a", "exit_code": 3})
LOOPBACK = networks_of(["127.0.0.0/8"])


class Receiver(ThreadingHTTPServer):
    """Takes webhooks; answers as the first part of the path says."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), ReceiverHandler)
        self.heard: list[tuple[str, dict[str, str], bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class ReceiverHandler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert isinstance(self.server, Receiver)
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.heard.append((self.path, headers, body))
        status = int(self.path.split("/")[1].partition("?")[0])
        said = f"Cannot POST {self.path} " if "secret" in self.path else "said "
        self.send_response(status)
        if status in (301, 302, 307):
            self.send_header("Location", "http://127.0.0.1:9/")
        if status == 429:
            self.send_header("Retry-After", "17")
        self.end_headers()
        self.wfile.write(f"{said}\x1b[31m".encode() + b"x" * 5_000)

    def log_message(self, *_arguments: Any) -> None:
        pass


@contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    with serving(server):
        yield server


def sent(url: str, trusted: bool = True, allowed: Any = (), timeout_s: float = 30.0, keys: Any = ()) -> SendResult:
    return send_webhook(MESSAGE, Destination(url=url, trusted=trusted, keys=keys), allowed, "", timeout_s)


def test_a_webhook_is_signed_json_that_its_receiver_can_check(receiver: Receiver) -> None:
    assert sent(f"{receiver.url}/204?token=x", keys=(KEY,)) == SendResult()
    path, headers, body = receiver.heard[-1]
    assert path == "/204?token=x" and headers["content-type"] == "application/json"
    told = json.loads(body)
    assert (told["type"], told["timestamp"]) == ("job.failed", "2023-11-14T22:13:20Z")
    assert told["data"] == MESSAGE.data and told["text"] == MESSAGE.text
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(key_bytes(KEY), signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}" and headers["webhook-id"] == "a.7.0"


@pytest.mark.parametrize(
    ("status", "final", "wait_s"),
    [
        (400, True, 0),
        (404, True, 0),
        (410, True, 0),
        (408, False, 0),
        (429, False, 17),
        (500, False, 0),
        (503, False, 0),
    ],
)
def test_what_a_receiver_answers_is_refused_for_good_or_tried_again(
    receiver: Receiver, status: int, final: bool, wait_s: float
) -> None:
    result = sent(f"{receiver.url}/{status}")
    assert (result.final, result.wait_s) == (final, wait_s)
    assert f"answers {status}" in result.reason and len(result.reason) <= 480 and "\x1b" not in result.reason


def test_an_answer_that_repeats_the_address_gives_nothing_of_it_away(receiver: Receiver) -> None:
    """As many servers answer 404; what it was refused with is shown to all who may read the job."""
    said = sent(f"{receiver.url}/404/T0/secret?token=secret").reason
    assert "answers 404 " in said and "Cannot POST ..." in said and "secret" not in said


@pytest.mark.parametrize(
    ("target", "said"),
    [("webhook:http://[", "ValueError"), ("webhook:http://a:99999/", "ValueError"), ("mail:a@b.c", "No space left")],
)
def test_whatever_is_wrong_with_a_try_is_its_result(
    target: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever leads would fall with it, and each that leads after it."""

    def full(*_args: Any, **_more: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    path = tmp_path / "notifications.yaml"
    path.write_text("mail_command: ['true']")
    path.chmod(0o600)
    result = send(target, MESSAGE, NotificationsSection(), path, "h1")
    assert said in result.reason and not result.final


@pytest.mark.parametrize("status", [301, 302, 307])
def test_redirects_are_not_followed(receiver: Receiver, status: int) -> None:
    before = len(receiver.heard)
    result = sent(f"{receiver.url}/{status}")
    assert result.final and "is not followed" in result.reason and len(receiver.heard) == before + 1


def test_a_users_webhook_reaches_loopback_only_where_that_is_allowed(receiver: Receiver) -> None:
    before = len(receiver.heard)
    for url in (
        receiver.url,
        receiver.url.replace("127.0.0.1", "localhost"),
        receiver.url.replace("127.0.0.1", "[::1]"),
    ):
        result = sent(f"{url}/204", trusted=False)
        assert result.final and "this host itself" in result.reason
    # Numbers as resolvers take them: the address is looked at, not its spelling.
    for spelled in ("2130706433", "0x7f.1", "127.1"):
        result = sent(f"{receiver.url.replace('127.0.0.1', spelled)}/204", trusted=False)
        assert result.reason, spelled
    assert len(receiver.heard) == before
    assert sent(f"{receiver.url}/204", trusted=False, allowed=LOOPBACK) == SendResult()


def test_one_bad_address_of_a_name_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    def two(_host: str, port: int, **_more: Any) -> list[Any]:
        return [(2, 1, 6, "", ("93.184.216.34", port)), (2, 1, 6, "", ("169.254.169.254", port))]

    monkeypatch.setattr(socket, "getaddrinfo", two)
    result = sent("https://rebind.example/", trusted=False)
    assert result.final and "169.254.169.254 is a link-local address" in result.reason


def test_over_the_public_internet_users_send_by_https_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda _host, port, **_more: [(2, 1, 6, "", ("93.184.216.34", port))])
    result = sent("http://plain.example/", trusted=False)
    assert result.final and "only https" in result.reason


def test_nobody_there_is_tried_again() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        result = sent(f"http://127.0.0.1:{unused.getsockname()[1]}/")
    assert not result.final and "refused" in result.reason
    result = sent("http://no-such-host.invalid/")
    assert not result.final and "leads nowhere" in result.reason


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 500 No\r\n", b"x"])
def test_who_answers_a_byte_at_a_time_or_nothing_does_not_keep_it(said: bytes) -> None:
    """The limit is one of the whole try, not of each read."""
    stop = threading.Event()

    def drip(listener: socket.socket) -> None:
        conn, _ = listener.accept()
        with conn:
            try:
                conn.sendall(said)
                while not stop.wait(0.02):
                    conn.sendall(b"x" if said else b"")
            except OSError:
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,), daemon=True)
        thread.start()
        result = sent(f"http://127.0.0.1:{listener.getsockname()[1]}/", timeout_s=0.3)
        stop.set()
        thread.join()
    assert not result.final and ("no answer in 0.3 s" in result.reason or "answers 500" in result.reason)


def test_a_certificate_that_nobody_vouches_for_is_not_believed(tmp_path: Path) -> None:
    """Until the operator names its authority."""
    file = tmp_path / "hook.pem"
    write_self_signed(file, "hook")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    server = Receiver()
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with serving(server):
        destination = Destination(url=f"{server.url.replace('http:', 'https:')}/204", trusted=True)
        result = send_webhook(MESSAGE, destination, (), "", 30.0)
        assert not result.final and "cannot be trusted" in result.reason and not server.heard
        assert send_webhook(MESSAGE, destination, (), str(file), 30.0) == SendResult()
        other = Destination(url=destination.url.replace("127.0.0.1", "localhost"), trusted=True)
        assert "cannot be trusted" in send_webhook(MESSAGE, other, (), str(file), 30.0).reason
        assert len(server.heard) == 1
    result = send_webhook(MESSAGE, destination, (), str(tmp_path / "missing.pem"), 30.0)
    assert "ca_file" in result.reason


def mail(tmp_path: Path, script: str, timeout_s: float = 30.0, to: str = "ann@example.org") -> SendResult:
    command = ("/bin/sh", "-c", script, "mail", "{to}", "{subject}", str(tmp_path / "mail"))
    operator = OperatorFile(mail_command=command, mail_from="cluster@example.org")
    return send_mail(MESSAGE, Destination(mail_to=to), operator, "h1", timeout_s)


def test_a_mail_goes_to_the_operators_command_whole(tmp_path: Path) -> None:
    assert mail(tmp_path, 'cat > "$3"; echo "$1 $2" >> "$3"') == SendResult()
    text = (tmp_path / "mail").read_text()
    for line in ("From: cluster@example.org", "To: ann@example.org", "Subject: job a has failed", "exit_code: 3"):
        assert line in text
    assert text.endswith("ann@example.org job a has failed\n")


def test_an_address_that_holds_the_word_for_the_subject_stays_as_it_is(tmp_path: Path) -> None:
    assert mail(tmp_path, 'echo "$1" > "$3"', to="a{subject}@example.org") == SendResult()
    assert (tmp_path / "mail").read_text() == "a{subject}@example.org\n"


def test_a_mail_command_that_fails_hangs_or_is_missing_is_tried_again(tmp_path: Path) -> None:
    result = mail(tmp_path, "echo no route; exit 75")
    assert not result.final and result.reason == "/bin/sh ended with 75: no route"
    assert "not done in 0.2 s" in mail(tmp_path, "sleep 60 & wait", 0.2).reason
    missing = send_mail(MESSAGE, Destination(mail_to="a@b.c"), OperatorFile(mail_command=("/no/such",)), "h1", 1.0)
    assert "cannot be started" in missing.reason
