"""``audit send``: hands the records of a host to a syslog server over TLS, or to a webhook, and goes on where it was.

What was taken is written down only after it was sent, so that a record may come twice, and none is left out. A syslog
server says nothing back: what it loses behind the connection nobody here can tell.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import ssl
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import SplitResult, urlsplit

from actorgrid.bounded_http import is_here, request_path, tls_context
from actorgrid.errors import BadRequest, HostUnreachable

from .call import CommandContext

SYSLOG, SYSLOG_PORT = "syslog+tls", 6514
WAIT_S = 15.0
POLL_S = 10.0
BATCH = 100
"""Events of one request, and records of one write."""


class RecordSender(Protocol):
    """What hands lines of the log to somebody."""

    def send(self, lines: Sequence[bytes]) -> None:
        """Send those lines. Raises HostUnreachable."""

    def close(self) -> None:
        """End the connection, once all was read at the other end. Raises HostUnreachable."""


def sender_of(target: str, ca: Path | None) -> RecordSender:
    """What sends lines of the log to *target*. Raises BadRequest for a target that is none."""
    parts = urlsplit(target)
    try:
        port = parts.port
    except ValueError:
        port = -1
    good = parts.scheme in (SYSLOG, "https") or (parts.scheme == "http" and is_here(parts.hostname or ""))
    if not good or not parts.hostname or port == -1 or parts.username is not None:
        raise BadRequest(
            "audit records go to a syslog server over TLS, or to a webhook",
            asked=target[:200],
            found="syslog+tls://HOST[:6514], https://HOST/PATH; http:// on this machine alone",
        )
    context = None if parts.scheme == "http" else tls_context("" if ca is None else str(ca))
    return _Syslog(parts, context) if parts.scheme == SYSLOG else _Webhook(parts, context)


def read_cursor(path: Path | None, first: int | None) -> int | None:
    """Which record comes first: *first*, or where the last call came to; ``None``: the first that is kept."""
    if first is not None or path is None or not path.exists():
        return first
    text = path.read_text(encoding="ascii", errors="replace").strip()
    if not text.isdecimal() or len(text) > 19:
        raise BadRequest("that file is no cursor of audit send", asked=str(path), found=text[:40])
    return int(text)


def send_all(
    call: CommandContext, sender: RecordSender, first: int | None, cursor: Path | None, follow: bool
) -> tuple[int, int]:
    """Send all records from *first* on; gives how many, and the number of the next. With *follow* it does not end.

    To ask for records is a record, too: a round ends with those that there were as it began.
    """
    door, sent, at = call.plain_http, 0, first
    while True:
        head = door.get("/api/audit/head")
        at = int(head["first"]) if at is None else at
        while at < head["size"]:
            lines = door.get("/api/audit/export", first=at).splitlines()[: head["size"] - at]
            for start in range(0, len(lines), BATCH):
                batch = lines[start : start + BATCH]
                sender.send(batch)
                at, sent = at + len(batch), sent + len(batch)
                if cursor is not None:
                    _write_cursor(cursor, at)
        if not follow:
            sender.close()
            return sent, at
        time.sleep(POLL_S)


def _write_cursor(path: Path, at: int) -> None:
    draft = path.with_name(path.name + ".new")
    try:
        draft.write_text(f"{at}\n", encoding="ascii")
        os.replace(draft, path)
    except OSError as error:
        raise BadRequest(f"cannot write {path}: {error.strerror}", asked=str(path)) from error


def _no_way(parts: SplitResult, error: Exception, hint: str = "") -> HostUnreachable:
    return HostUnreachable(
        "the audit records were not taken", asked=f"{parts.scheme}://{parts.netloc}", found=str(error)[:300], hint=hint
    )


class _Syslog:
    """One connection; made anew when it has ended."""

    def __init__(self, parts: SplitResult, context: ssl.SSLContext | None) -> None:
        assert context is not None and parts.hostname is not None
        self._parts, self._context = parts, context
        self._address = parts.hostname, parts.port or SYSLOG_PORT
        self._link: ssl.SSLSocket | None = None

    def send(self, lines: Sequence[bytes]) -> None:
        from actorgrid.actors.security.audit_events import framed, to_syslog

        data = b"".join(framed(to_syslog(line)) for line in lines)
        try:
            if self._link is None:
                raw = socket.create_connection(self._address, WAIT_S)
                with contextlib.ExitStack() as opened:
                    opened.enter_context(raw)
                    self._link = self._context.wrap_socket(raw, server_hostname=self._address[0])
                    opened.pop_all()
            self._link.sendall(data)
        except (OSError, ssl.SSLError) as error:
            if self._link is not None:
                self._link.close()
            raise _no_way(self._parts, error, "--ca names the certificates that are believed") from None

    def close(self) -> None:
        if self._link is None:
            return
        try:
            self._link.unwrap().close()  # the other end says goodbye when it has read all that was sent before
        except (OSError, ssl.SSLError) as error:
            self._link.close()
            if not isinstance(error, ssl.SSLEOFError | ConnectionResetError):  # many servers just hang up
                raise _no_way(self._parts, error) from None


class _Webhook:
    """One request for each batch; redirects are not followed."""

    def __init__(self, parts: SplitResult, context: ssl.SSLContext | None) -> None:
        self._parts, self._context = parts, context

    def close(self) -> None:
        pass  # each request had its own

    def send(self, lines: Sequence[bytes]) -> None:
        from actorgrid.actors.security.audit_events import to_cloud_event

        parts = self._parts
        body = json.dumps([to_cloud_event(line) for line in lines], separators=(",", ":"))
        host = parts.hostname or ""
        link = (
            http.client.HTTPConnection(host, parts.port, timeout=WAIT_S)
            if self._context is None
            else http.client.HTTPSConnection(host, parts.port, timeout=WAIT_S, context=self._context)
        )
        headers = {"Content-Type": "application/cloudevents-batch+json; charset=utf-8"}
        try:
            link.request("POST", request_path(parts), body, headers)
            answer = link.getresponse()
            said = answer.read(300)
        except (OSError, http.client.HTTPException) as error:
            raise _no_way(parts, error) from None
        finally:
            link.close()
        if not 200 <= answer.status < 300:
            raise HostUnreachable(
                "the receiver did not take the audit records",
                asked=f"{parts.scheme}://{parts.netloc}",
                found=f"{answer.status} {said.decode('utf-8', 'replace')}"[:300],
            )
