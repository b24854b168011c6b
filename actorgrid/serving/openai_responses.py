"""``POST /v1/responses`` of a class with ``chat``: the newer shape of the same question."""

from __future__ import annotations

import contextlib
import time
import uuid
from typing import Any

from aiohttp import web

from .answers import EventStream, answer
from .generation import ChatRequest
from .openai_door import LanguageDoor, usage_of
from .openai_requests import ResponseBody, parsed
from .text_answers import AnswerEnd

Shown = dict[str, Any]


class ResponsesDoor:
    """Answers one text to one input; nothing is kept on the server."""

    def __init__(self, door: LanguageDoor) -> None:
        self._door = door

    async def respond(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/responses``."""
        body: ResponseBody = parsed(await request.read(), ResponseBody)
        self._door.check_model(body.model)
        call = self._door.call_of(request, "chat", ())
        text = call.generate(ChatRequest(body.model, body.turns, body.sampling))
        shown = _Response(body)
        if body.stream:
            return await self._stream(request, text, shown)
        parts = []
        async with contextlib.aclosing(text):
            async for given in text:
                if isinstance(given, AnswerEnd):
                    shown.end = given
                else:
                    parts.append(given)
        return answer(shown.whole("".join(parts)))

    async def _stream(self, request: web.Request, text: Any, shown: _Response) -> web.StreamResponse:
        stream = EventStream(request)
        number = 0

        async def send(kind: str, **fields: Any) -> None:
            nonlocal number
            await stream.send({"type": kind, "sequence_number": number, **fields}, event=kind)
            number += 1

        place = {"item_id": shown.message_id, "output_index": 0, "content_index": 0}
        parts: list[str] = []
        async with stream.commented(), contextlib.aclosing(text):
            try:
                async for given in text:
                    if not number:  # not before the first piece: until then a failure is an ordinary answer
                        await send("response.created", response=shown.begun())
                        await send("response.in_progress", response=shown.begun())
                        item = shown.message("", "in_progress")
                        await send("response.output_item.added", output_index=0, item={**item, "content": []})
                        await send("response.content_part.added", **place, part=_part(""))
                    if isinstance(given, AnswerEnd):
                        shown.end = given
                    else:
                        parts.append(given)
                        await send("response.output_text.delta", **place, delta=given, logprobs=[])
            except ConnectionResetError:
                raise
            except Exception as error:  # noqa: BLE001  (whatever the class raises is its caller's to hear)
                await stream.fail(error)
                return await stream.broken()
            whole = "".join(parts)
            await send("response.output_text.done", **place, text=whole, logprobs=[])
            await send("response.content_part.done", **place, part=_part(whole))
            await send("response.output_item.done", output_index=0, item=shown.message(whole, shown.status))
            kind = "response.completed" if shown.status == "completed" else "response.incomplete"
            await send(kind, response=shown.whole(whole))
        return await stream.end(b"")


class _Response:
    """One response, as it is shown at its several stages."""

    def __init__(self, body: ResponseBody) -> None:
        self._body = body
        self._id = f"resp_{uuid.uuid4().hex}"
        self._created = int(time.time())
        self.message_id = f"msg_{uuid.uuid4().hex}"
        self.end: AnswerEnd | None = None

    @property
    def status(self) -> str:
        return "incomplete" if self.end is not None and self.end.finish_reason == "length" else "completed"

    def begun(self) -> Shown:
        return self._shown("in_progress", [], None)

    def whole(self, text: str) -> Shown:
        assert self.end is not None, "a text has ended"
        counted = usage_of([self.end])
        usage = {
            "input_tokens": counted["prompt_tokens"],
            "input_tokens_details": counted["prompt_tokens_details"],
            "output_tokens": counted["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": counted["total_tokens"],
        }
        return self._shown(self.status, [self.message(text, self.status)], usage)

    def message(self, text: str, status: str) -> Shown:
        return {
            "id": self.message_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [_part(text)],
        }

    def _shown(self, status: str, output: list[Shown], usage: Shown | None) -> Shown:
        body = self._body
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": {},
            "model": body.model,
            "output": output,
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "store": False,
            "temperature": body.sampling.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "none",
            "tools": [],
            "top_p": body.sampling.top_p,
            "truncation": "disabled",
            "usage": usage,
        }


def _part(text: str) -> Shown:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
