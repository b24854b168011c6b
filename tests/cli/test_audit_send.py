"""``audit send``: real receivers, TLS and HTTP, are given the records of a log, from where the last call came to."""

from __future__ import annotations

import json
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.security.audit_events import to_syslog
from actorgrid.actors.security.audit_records import AuditFacts, record_line, to_record
from tests.cli.conftest import Door, Invoke
from tests.self_signed import write_self_signed


def line_of(number: int, user: str = "ann@lab", status: int = 200) -> bytes:
    facts = AuditFacts(user, "k1", "user", "lab", "10.0.0.7", "POST", "/api/jobs", "/api/jobs", status, "done")
    return record_line(to_record(facts, number, 1.7e9 + number, "h1"))


@pytest.fixture
def log(door: Door) -> list[bytes]:
    """A host's log of 250 records, which grows by one with each question, as real ones do."""
    lines = [line_of(number) for number in range(250)]

    def export(query: dict[str, str], _body: Any) -> Any:
        found = lines[int(query["first"]) :]
        lines.append(line_of(len(lines)))
        return b"".join(line + b"\n" for line in found)

    def head(_query: dict[str, str], _body: Any) -> Any:
        return {"note": "", "key": "", "size": len(lines), "first": 0, "roots": []}

    door.on("GET /api/audit/head", head)
    door.on("GET /api/audit/export", export)
    return lines


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[Any]]]:
    taken: list[Any] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            refused = self.path == "/full" and len(taken) >= 2
            if not refused:
                taken.append((self.headers["Content-Type"], json.loads(body)))
            self.send_response(503 if refused else 204)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", taken
    server.shutdown()
    server.server_close()
    thread.join(10)


def test_a_webhook_gets_all_records_as_cloud_events_and_goes_on_at_the_cursor(
    call: Invoke, log: list[bytes], webhook: tuple[str, list[Any]], tmp_path: Path
) -> None:
    url, taken = webhook
    cursor = tmp_path / "cursor"
    done = call("audit", "send", f"{url}/in", "--cursor", str(cursor), "--json")
    assert done.exit_code == 0, done.output
    events = [event for kind, batch in taken for event in batch]
    assert {kind.partition(";")[0] for kind, _ in taken} == {"application/cloudevents-batch+json"}
    assert [event["id"] for event in events] == [str(number) for number in range(250)]
    assert events[7]["data"] == json.loads(line_of(7)) and events[7]["source"] == "actorgrid/audit/h1"
    assert len(taken) == 3 and cursor.read_text() == "250\n"
    assert call("audit", "send", f"{url}/in", "--cursor", str(cursor)).exit_code == 0
    assert [event["id"] for event in taken[3][1]] == ["250"], "what came meanwhile, and nothing twice"


def test_what_a_receiver_does_not_take_is_sent_again(
    call: Invoke, log: list[bytes], webhook: tuple[str, list[Any]], tmp_path: Path
) -> None:
    url, taken = webhook
    cursor = tmp_path / "cursor"
    failed = call("audit", "send", f"{url}/full", "--cursor", str(cursor))
    assert failed.exit_code and "503" in failed.output and cursor.read_text() == "200\n"
    assert call("audit", "send", f"{url}/in", "--cursor", str(cursor)).exit_code == 0
    assert taken[2][1][0]["id"] == "200"


def _messages(data: bytes) -> list[bytes]:
    found = []
    while data:
        length, _, rest = data.partition(b" ")
        found.append(rest[: int(length)])
        data = rest[int(length) :]
    return found


def test_a_syslog_server_gets_them_over_tls_that_is_verified(call: Invoke, log: list[bytes], tmp_path: Path) -> None:
    pem = tmp_path / "logs.pem"
    write_self_signed(pem, "logs")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as door:

        def serve() -> None:
            for _ in range(2):
                raw, _ = door.accept()
                try:
                    with context.wrap_socket(raw, server_side=True) as link:
                        while data := link.recv(65_536):
                            heard.append(data)
                        link.unwrap()
                except OSError:  # who does not believe the certificate hangs up
                    raw.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        url = f"syslog+tls://127.0.0.1:{door.getsockname()[1]}"
        refused = call("audit", "send", url)
        assert refused.exit_code and not heard, "a certificate that nobody vouches for"
        done = call("audit", "send", url, "--ca", str(pem))
        assert done.exit_code == 0, done.output
        thread.join(30)
    messages = _messages(b"".join(heard))
    assert len(messages) == 251, "to ask was a record, too"
    head, _, text = messages[3].partition(b"\xef\xbb\xbf")
    assert text == line_of(3), "the very line of the log"
    assert re.fullmatch(
        rb'<109>1 2023-11-14T22:13:23\.000000Z h1 actorgrid - POST \[audit@32473 seq="3" user="ann@lab" .*\] ', head
    ), head


def test_what_somebody_called_himself_does_not_break_a_message() -> None:
    head = to_syslog(line_of(1, 'a"] <0>1 \n\\', 403)).partition(b"\xef\xbb\xbf")[0].decode()
    assert head.startswith("<108>1 ") and 'user="a\\"\\] <0>1 ?\\\\"' in head and "\n" not in head


@pytest.mark.parametrize(
    "target", ["syslog://h:514", "http://logs.example.org/", "https://", "https://u:p@h/", "https://h:99999/", "x"]
)
def test_where_records_would_go_in_the_open_is_refused(call: Invoke, target: str) -> None:
    refused = call("audit", "send", target)
    assert refused.exit_code and "syslog+tls://HOST" in refused.output
