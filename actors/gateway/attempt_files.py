"""What an attempt left on the disk of the host that it ran on, read here or over the links between hosts."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any, Protocol

from actorgrid.actors.ledger.record_types import AttemptRecord
from actorgrid.errors import HostUnreachable, NotFound

from ..links.messages import AskHost
from ..links.output_pages import OutputsPage, outputs_page, read_output_piece
from ..links.output_search import LastLines, MatchingLines, OutputPlace, last_lines, matching_lines, place_since
from ..links.pieces import Piece, read_result_piece
from ..links.step_items import ITEMS_LOOK_S, ItemRequest, ItemTaker
from ..work.attempt_dir import AttemptDir
from .server.route import RequestContext

OUTPUT_BYTES = 256 * 2**10
RESULT_BYTES = 768 * 2**10
REMOTE_S = 15.0
WAIT_S = 0.5
"""How long another host waits for output before it says that there is none."""


class AttemptFiles(Protocol):
    """The files of one attempt. Raises HostUnreachable, CallTimeout or PeerGone when its host does not answer."""

    async def output(self, stream: str, offset: int, size: int, follow: bool) -> tuple[Piece, bool]:
        """Output from *offset* on, and whether anything of the attempt is there; with *follow* it may wait for some."""

    async def since(self, stream: str, since_s: float | None) -> OutputPlace:
        """Where the output of the last *since_s* seconds begins."""

    async def last(self, stream: str, first: int, end: int, count: int, pattern: str) -> LastLines:
        """Where the last lines of a part of the output begin."""

    async def matching(self, stream: str, offset: int, end: int | None, pattern: str) -> MatchingLines:
        """The lines from *offset* on that match; without an *end* it may wait for some."""

    async def outputs(self, behind: str) -> OutputsPage:
        """A page of the outputs that were kept."""

    async def output_file(self, path: str, offset: int) -> Piece | None:
        """An output from *offset* on; ``None`` when there is none of that path."""

    async def result(self, offset: int) -> Piece | None:
        """The result file from *offset* on; ``None`` when there is none."""

    async def items(self, position: int, size: int, taker: ItemTaker, wait_s: float) -> Piece:
        """What a step that streams has written by now, from *position* on; waits so long for some at most."""


def files_of(call: RequestContext, attempt: AttemptRecord) -> AttemptFiles:
    """The reader of the attempt's files, here or on its host. Raises HostUnreachable for a host that is not reached."""
    if attempt["host"] == call.app.host.host_id:
        return _Here(call, AttemptDir(call.app.host.paths.attempts_dir, attempt["attempt_id"]))
    if call.app.host.enrolment is None:
        raise HostUnreachable(
            f"attempt {attempt['attempt_id']} ran on another host, and this one is alone",
            found=str(attempt["host"]),
        )
    return _There(call, attempt["host"], attempt["attempt_id"])


class _Here:
    def __init__(self, call: RequestContext, folder: AttemptDir) -> None:
        self._app = call.app
        self._folder = folder

    async def output(self, stream: str, offset: int, size: int, follow: bool) -> tuple[Piece, bool]:
        folder = self._folder

        def read() -> tuple[Piece, bool]:
            exists = folder.path.exists()
            return Piece(folder.read_output(stream, offset, size), folder.output_size(stream)), exists

        return await self._app.in_file_pool(read)

    async def since(self, stream: str, since_s: float | None) -> OutputPlace:
        return await self._app.in_file_pool(partial(place_since, self._folder, stream, since_s))

    async def last(self, stream: str, first: int, end: int, count: int, pattern: str) -> LastLines:
        return await self._app.in_file_pool(partial(last_lines, self._folder, stream, first, end, count, pattern))

    async def matching(self, stream: str, offset: int, end: int | None, pattern: str) -> MatchingLines:
        return await self._app.in_file_pool(partial(matching_lines, self._folder, stream, offset, end, pattern))

    async def outputs(self, behind: str) -> OutputsPage:
        return await self._app.in_file_pool(partial(outputs_page, self._folder, behind))

    async def output_file(self, path: str, offset: int) -> Piece | None:
        return await self._app.in_file_pool(partial(read_output_piece, self._folder, path, offset, RESULT_BYTES))

    async def result(self, offset: int) -> Piece | None:
        return await self._app.in_file_pool(partial(read_result_piece, self._folder, offset, RESULT_BYTES))

    async def items(self, position: int, size: int, taker: ItemTaker, wait_s: float) -> Piece:
        until = time.monotonic() + wait_s
        request = ItemRequest(self._folder, position, size, taker)
        while True:
            piece = await self._app.in_file_pool(request.read)
            if piece.data or time.monotonic() >= until:
                return piece
            await asyncio.sleep(ITEMS_LOOK_S)


class _There:
    def __init__(self, call: RequestContext, host_id: str, attempt_id: str) -> None:
        self._call = call
        self._host_id = host_id
        self._attempt_id = attempt_id

    async def output(self, stream: str, offset: int, size: int, follow: bool) -> tuple[Piece, bool]:
        wait_s = WAIT_S if follow else 0.0
        answer = await self._ask("output", stream=stream, offset=offset, size=size, wait_s=wait_s)
        return Piece.of_plain(answer), bool(answer.get("exists"))

    async def since(self, stream: str, since_s: float | None) -> OutputPlace:
        return OutputPlace.of_plain(await self._ask("output_since", stream=stream, since_s=since_s))

    async def last(self, stream: str, first: int, end: int, count: int, pattern: str) -> LastLines:
        asked = {"stream": stream, "first": first, "end": end, "count": count, "pattern": pattern}
        return LastLines.of_plain(await self._ask("output_last", **asked))

    async def matching(self, stream: str, offset: int, end: int | None, pattern: str) -> MatchingLines:
        wait_s = WAIT_S if end is None else 0.0
        asked = {"stream": stream, "offset": offset, "end": end, "pattern": pattern, "wait_s": wait_s}
        return MatchingLines.of_plain(await self._ask("output_matching", **asked))

    async def outputs(self, behind: str) -> OutputsPage:
        return OutputsPage.of_plain(await self._ask("output_files", behind=behind))

    async def output_file(self, path: str, offset: int) -> Piece | None:
        try:
            return Piece.of_plain(await self._ask("output_file", path=path, offset=offset, size=RESULT_BYTES))
        except NotFound:
            return None

    async def result(self, offset: int) -> Piece | None:
        try:
            return Piece.of_plain(await self._ask("result", offset=offset, size=RESULT_BYTES))
        except NotFound:
            return None

    async def items(self, position: int, size: int, taker: ItemTaker, wait_s: float) -> Piece:
        asked = {"position": position, "size": size, "by": taker.by, "taken": taker.taken, "wait_s": wait_s}
        return Piece.of_plain(await self._ask("items", **asked))

    async def _ask(self, service: str, **fields: Any) -> Any:
        ask = AskHost(self._host_id, service, {"attempt_id": self._attempt_id, **fields}, REMOTE_S)
        return await self._call.ask("links", ask, REMOTE_S + 1)
