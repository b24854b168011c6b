"""Answers of models as they are made, kept for a while: whoever reads one may lose its connection and go on.

A stream is asked of this host's model gateway with the token of whoever began it: that decides who may ask what, counts
it and chooses the replica. What comes is kept, event by event, and read by as many as come with its id: over a
WebSocket, as server-sent events, or by the gRPC door. It is broken off upstream at once when the last reader has left,
or ``resume_s`` later if whoever began it said so.

Bounds: 256 streams, of one caller 64; of each the last 4 MiB and 16,384 events, none of them larger than 1 MiB; 60 s
to go on in, also after its end; 15 s for the first reader to come. They are of one start of a host.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import ssl
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any

from actorgrid.errors import (
    ActorGridError,
    BadRequest,
    HostUnreachable,
    MalformedMessage,
    NotFound,
    Overloaded,
    ServingError,
    WrongToken,
)

if TYPE_CHECKING:
    import aiohttp

LOOK_S = 0.1
"""It is looked so often whether a reader is still there: what nobody reads is broken off within that time."""
STREAMS_MAX, OF_CALLER_MAX = 256, 64
BYTES_MAX, EVENTS_MAX, EVENT_BYTES_MAX = 4 * 2**20, 16_384, 2**20
RESUME_S_MAX = 60.0
FIRST_READER_S = 15.0
CONNECT_S = 5.0
DONE = b"[DONE]"
ID_BYTES = 12


class TokenStream:
    """One answer. Its events have numbers from 1."""

    def __init__(self, stream_id: str, caller: str, resume_s: float) -> None:
        self.id = stream_id
        self.caller = caller
        self.resume_s = resume_s
        self.readers = 0
        self.error: ActorGridError | None = None
        self.is_over = False
        self._events: deque[bytes] = deque()
        self._first = 1
        self._bytes = 0
        self._came = asyncio.Event()

    def add(self, event: bytes) -> None:
        """Keep an event; the oldest go where there is no room."""
        self._events.append(event)
        self._bytes += len(event)
        while self._bytes > BYTES_MAX or len(self._events) > EVENTS_MAX:
            self._bytes -= len(self._events.popleft())
            self._first += 1
        self._wake()

    def end(self, error: ActorGridError | None = None) -> None:
        """Nothing more comes, or *error* instead of it."""
        if not self.is_over:
            self.is_over, self.error = True, error
            self._wake()

    def _wake(self) -> None:
        self._came.set()
        self._came = asyncio.Event()

    async def read(self, after: int) -> AsyncGenerator[tuple[int, bytes] | None]:
        """The events behind number *after*, as they come; ``None`` when none came for ``LOOK_S``.

        Raises BadRequest for one that is not kept any more, or is to come; the stream's own error behind its last
        event.
        """
        while True:
            if not self._first - 1 <= after < self._first + len(self._events):
                raise BadRequest(
                    "the stream cannot be gone on with from there",
                    asked=f"behind event {after}",
                    found=f"events {self._first} to {self._first + len(self._events) - 1} are kept",
                    hint="read it faster, or ask the model again",
                )
            came = self._came
            while after < self._first + len(self._events) - 1:
                if after < self._first - 1:
                    break  # it was overtaken while it was being sent
                after += 1
                yield after, self._events[after - self._first]
            else:
                if self.is_over:
                    if self.error is not None:
                        raise self.error
                    return
                try:
                    async with asyncio.timeout(LOOK_S):
                        await came.wait()
                except TimeoutError:
                    yield None


class TokenStreams:
    """The streams of a host. Lives in the loop's thread."""

    def __init__(self, security_dir: Path) -> None:
        self._security_dir = security_dir
        self._streams: dict[str, TokenStream] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._session: aiohttp.ClientSession | None = None
        self._tls: tuple[tuple[int, ...], ssl.SSLContext] | None = None

    def __len__(self) -> int:
        return len(self._streams)

    def begin(
        self,
        caller: str,
        url: str,
        authorization: str,
        body: dict[str, Any],
        resume_s: float,
    ) -> TokenStream:
        """Ask the model gateway at *url*. Raises Overloaded where there are as many as may be."""
        mine = sum(each.caller == caller for each in self._streams.values())
        if len(self._streams) >= STREAMS_MAX or mine >= OF_CALLER_MAX:
            raise Overloaded(
                "the host has its maximum of token streams" + (" with this token" if mine >= OF_CALLER_MAX else ""),
                found=str(OF_CALLER_MAX if mine >= OF_CALLER_MAX else STREAMS_MAX),
                hint="cancel some that are not read, with DELETE, or ask the model gateway itself",
            )
        stream = TokenStream(secrets.token_urlsafe(ID_BYTES), caller, resume_s)
        self._streams[stream.id] = stream
        self._tasks[stream.id] = asyncio.create_task(self._ask(stream, url, authorization, body))
        self._end_after(stream, FIRST_READER_S)
        return stream

    def find(self, stream_id: str, caller: str) -> TokenStream:
        """A stream of *caller*. Raises NotFound, for those of others, too."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.caller != caller:
            raise NotFound(
                "there is no such token stream",
                asked=stream_id[:64],
                found="it has ended, is of another host or start of it, or of somebody else",
                hint="begin another: POST /api/token-streams",
            )
        return stream

    async def read(self, stream: TokenStream, after: int) -> AsyncGenerator[tuple[int, bytes] | None]:
        """Its events, and ``None`` where it is time to look whether they are still read.

        Close this when the reader is gone: the stream may end with it.
        """
        stream.readers += 1
        timer = self._timers.pop(stream.id, None)
        if timer is not None:
            timer.cancel()
        try:
            async for event in stream.read(after):
                yield event
        finally:
            stream.readers -= 1
            if not stream.readers and stream.id in self._streams:
                if stream.resume_s:
                    self._end_after(stream, stream.resume_s)
                else:
                    self.cancel(stream)

    def cancel(self, stream: TokenStream) -> None:
        """Break it off upstream, and forget it."""
        self._streams.pop(stream.id, None)
        timer = self._timers.pop(stream.id, None)
        if timer is not None:
            timer.cancel()
        task = self._tasks.pop(stream.id, None)
        if task is not None:
            task.cancel()
        stream.end(ServingError("the stream was cancelled", asked=stream.id, hint="ask the model again"))

    async def close(self) -> None:
        """Break all of them off."""
        tasks = list(self._tasks.values())
        for stream in list(self._streams.values()):
            self.cancel(stream)
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
        if self._session is not None:
            await self._session.close()

    def _end_after(self, stream: TokenStream, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._timers[stream.id] = loop.call_later(delay_s, self.cancel, stream)

    # -- upstream

    async def _ask(self, stream: TokenStream, url: str, authorization: str, body: dict[str, Any]) -> None:
        import aiohttp

        if self._session is None:
            connector = aiohttp.TCPConnector(limit=STREAMS_MAX, force_close=True)
            self._session = aiohttp.ClientSession(
                connector=connector, trust_env=False, cookie_jar=aiohttp.DummyCookieJar()
            )
        # What is too slow is decided by the model gateway, which has bounds for each part of an answer.
        limits = aiohttp.ClientTimeout(total=None, connect=CONNECT_S)
        headers = {"Authorization": authorization, "Accept": "text/event-stream"}
        try:
            tls = self._trusting() if url.startswith("https:") else True
            async with self._session.post(
                url, json=body, headers=headers, timeout=limits, ssl=tls, allow_redirects=False
            ) as response:
                if response.status != 200:
                    stream.end(refusal_of(response.status, await response.content.read(EVENT_BYTES_MAX)))
                    return
                await self._take(stream, response.content)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            stream.end(HostUnreachable("the model gateway broke the answer off", found=str(error)[:300]))
        except ActorGridError as error:
            stream.end(error)

    def _trusting(self) -> ssl.SSLContext:
        """For the model gateway of this host, where that shows the host's certificate. Raises KeyUnusable and the like,
        HostUnreachable without a certificate."""
        # A host that is alone has no certificate, and loads no library for them.
        from actorgrid.actors.security.host_material import BUNDLE_FILE, HOST_FILE, load_material
        from actorgrid.actors.security.tls_contexts import ssl_contexts

        try:
            mark = tuple((self._security_dir / name).stat().st_mtime_ns for name in (HOST_FILE, BUNDLE_FILE))
        except FileNotFoundError:
            mark = ()
        if self._tls is None or not mark or self._tls[0] != mark:
            material = load_material(self._security_dir, time(), expired_too=True)
            if material is None:
                raise HostUnreachable("the host has no certificate", asked="its model gateway, over HTTPS")
            self._tls = mark, ssl_contexts(material).client
        return self._tls[1]

    async def _take(self, stream: TokenStream, content: aiohttp.StreamReader) -> None:
        held = b""
        async for piece in content.iter_any():
            *lines, held = (held + piece).split(b"\n")
            if len(held) > EVENT_BYTES_MAX:
                raise MalformedMessage("an event of the answer is too long", found=f"over {EVENT_BYTES_MAX} bytes")
            for line in lines:
                data = line.strip().removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
                if data == DONE:
                    stream.end()
                    return
                if data:
                    error = error_of(data)
                    if error is not None:
                        stream.end(error)
                        return
                    stream.add(data)
        stream.end(HostUnreachable("the model gateway broke the answer off", found="no end of the stream came"))


def error_of(data: bytes) -> ActorGridError | None:
    """The error that an event's JSON is, in the form of OpenAI's API. Raises MalformedMessage for what is no JSON."""
    try:
        plain = json.loads(data)
    except ValueError:
        raise MalformedMessage("an event of the answer is no JSON", found=repr(data[:100])) from None
    error = plain.get("error") if isinstance(plain, dict) else None
    if not isinstance(error, dict):
        return None
    return ServingError(
        "the answer broke off",
        found=str(error.get("message"))[:1000],
        hint="actorgrid why SERVICE says what is with it",
    )


def refusal_of(status: int, body: bytes) -> ActorGridError:
    """What the model gateway refuses with, named."""
    try:
        said = str(json.loads(body)["error"]["message"])[:1000]
    except (ValueError, KeyError, TypeError):
        said = body[:300].decode("utf-8", "replace")
    if status in (401, 403):
        hint = "show an API key of the cluster: actorgrid key create"
        return WrongToken("the model gateway does not take this token", found=said, hint=hint)
    kind = NotFound if status == 404 else BadRequest if 400 <= status < 500 and status != 429 else Overloaded
    return kind(
        "the model does not answer", found=f"{status}: {said}", hint="actorgrid why SERVICE says what is with it"
    )
