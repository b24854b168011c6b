"""The log of requests: one line of JSON for each, without a word of what was asked or answered, or of the key.

At 64 MiB the file is set aside as ``requests.log.1``, in place of the one before.
"""

from __future__ import annotations

import json
import logging
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from .token_usage import UsedTokens

if TYPE_CHECKING:
    from .exchange import Exchange

log = logging.getLogger("actorgrid.model_gateway")
FILE_BYTES_MAX = 64 * 2**20
LINES_HELD = 64
QUOTED_MAX = 1_024
HELD_S = 1.0


class RequestLog:
    """Writes lines to *path*, some at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[str] = []
        self._since = 0.0
        self.failed_total = 0

    def write(self, exchange: Exchange, status: int, usage: UsedTokens, aborted: bool, now: float, at: float) -> None:
        """Note one request. *now* is monotonic, *at* seconds since the epoch."""
        request, service, key, head = exchange.request, exchange.service, exchange.key, exchange.head
        first = exchange.first_byte_at
        line = (
            f'{{"at":{at:.3f},"id":"{exchange.request_id.decode()}","path":{_quoted(head.path)},'
            f'"service":{_quoted(service.route.name if service is not None else "")},'
            f'"model":{_quoted(request.model if request is not None else "")},'
            f'"key":{_quoted(key.key_id if key is not None else "")},'
            f'"user":{_quoted(key.user if key is not None else "")},"status":{status},'
            f'"stream":{_bool(request is not None and request.is_stream)},"aborted":{_bool(aborted)},'
            f'"first_byte_s":{"null" if first is None else f"{first - exchange.started:.4f}"},'
            f'"took_s":{now - exchange.started:.4f},"bytes":{len(exchange.body)},'
            f'"tokens":[{usage.prompt_tokens},{usage.cached_tokens},{usage.completion_tokens}]}}'
        )
        if not self._lines:
            self._since = now
        self._lines.append(line)
        if len(self._lines) >= LINES_HELD or now - self._since > HELD_S:
            self.flush()

    def flush(self) -> None:
        """Write what is held. What cannot be written is lost, and counted."""
        lines, self._lines = self._lines, []
        if not lines:
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write("\n".join(lines) + "\n")
                size = file.tell()
            if size > FILE_BYTES_MAX:
                self._path.replace(self._path.with_suffix(".log.1"))
        except OSError as error:
            if not self.failed_total:
                log.warning("the log of requests cannot be written: %s", error)
            self.failed_total += len(lines)


@lru_cache(QUOTED_MAX)
def _quoted(text: str) -> str:
    """As a JSON string: nearly all of them are the same few."""
    return json.dumps(text)


def _bool(value: bool) -> str:
    return "true" if value else "false"
