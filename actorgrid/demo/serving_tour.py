"""The tour of ``actorgrid demo serve``: two replicas of the house's model, a chat, a kill, none and back."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from actorgrid.errors import ActorGridError, AnswerBroken, CallTimeout, HostUnreachable, StartFailed

from .chat_clients import ChatClient, ChatUsage, SpokenTurn
from .house_model.service import PACE_VARIABLE, HouseModel

if TYPE_CHECKING:
    from actorgrid.client.client import Client
    from actorgrid.client.services import ServiceHandle

NAME = "house"
REPLICAS = 2
TOKENS_PER_S = 120
QUESTION = "Tell me about leases."
FURTHER = "And what is a gang?"
TOKENS, LONG_TOKENS = 160, 600
OTHERS = 6
"""Requests that are made while the replica is killed."""
PATIENCE_S = 150.0
LOOK_S = 0.1
IDLE_S = 5.0


@dataclass(frozen=True, slots=True)
class TourStep:
    """Something that happened: *text* for people, *figures* for programs; what was asked and said, where it was."""

    name: str
    text: str
    figures: dict[str, float | int | str | bool] = field(default_factory=dict)
    question: str = ""
    answer: str = ""


@dataclass(slots=True)
class ChatResult:
    """An answer, or how it broke off."""

    text: str = ""
    usage: ChatUsage | None = None
    error: ActorGridError | None = None
    first_s: float = 0.0
    took_s: float = 0.0


Speak = Callable[[str], None]
"""What is called with each piece of an answer as it comes."""


class ServingTour:
    """Plays the tour on a cluster that is up."""

    def __init__(self, client: Client, chat: ChatClient, speak: Speak) -> None:
        self._client = client
        self._chat = chat
        self._speak = speak
        self._service: ServiceHandle | None = None
        self._url = ""

    def steps(self) -> Iterator[TourStep]:
        """All of it, one step after the other. Raises what goes wrong that should not."""
        yield self._serve()
        turns = [SpokenTurn("user", QUESTION)]
        first, step = self._talk("chat", turns)
        yield step
        turns += [SpokenTurn("assistant", first.text), SpokenTurn("user", FURTHER)]
        yield self._talk("further", turns)[1]
        yield from self._kill(turns)
        yield from self._none_and_back(turns)

    # -- its parts

    def _serve(self) -> TourStep:
        began = time.monotonic()
        env = {PACE_VARIABLE: str(TOKENS_PER_S), "OPENBLAS_NUM_THREADS": "1"}
        self._service = self._client.serve(
            NAME, HouseModel, replicas=REPLICAS, idle_s=IDLE_S, gpus=0.25, cpus=0.25, env=env
        )
        self._service.wait_ready(PATIENCE_S)
        took = time.monotonic() - began
        self._until(self._is_open)
        ports = [each["port"] for each in self._ready()]
        text = (
            f"{REPLICAS} replicas of {NAME} answered a first completion after {took:.1f} s, at ports {_listed(ports)}"
        )
        return TourStep("serving", text, {"ready_s": round(took, 3), "replicas": len(ports)})

    def _talk(self, name: str, turns: Sequence[SpokenTurn]) -> tuple[ChatResult, TourStep]:
        found = self._ask(turns, TOKENS, seed=8, speak=self._speak)
        if found.error is not None or found.usage is None:
            raise found.error or StartFailed("the answer has no usage")
        usage = found.usage
        text = (
            f"{usage.completion_tokens} tokens, the first after {found.first_s * 1000:.0f} ms;"
            f" {usage.cached_tokens} of the prompt's {usage.prompt_tokens} had been read before"
        )
        figures: dict[str, float | int | str | bool] = {
            "first_ms": round(found.first_s * 1000, 1),
            "took_s": round(found.took_s, 3),
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "completion_tokens": usage.completion_tokens,
        }
        return found, TourStep(name, text, figures, turns[-1].text, found.text)

    def _kill(self, turns: Sequence[SpokenTurn]) -> Iterator[TourStep]:
        """Kill the replica that speaks, while it does, and ask others at the same time."""
        killed: list[dict[str, Any]] = []
        with ThreadPoolExecutor(OTHERS) as pool:
            others: list[Any] = []

            def speak(piece: str) -> None:
                self._speak(piece)
                spoken.append(piece)
                if len("".join(spoken)) > 80 and not killed:
                    killed.append(self._kill_speaker())
                    others.extend(pool.submit(self._ask, [SpokenTurn("user", f"{n}?")], 20, n) for n in range(OTHERS))

            spoken: list[str] = []
            broken = self._ask(turns, LONG_TOKENS, seed=9, speak=speak)
            answered = [each.result() for each in others]
        if not killed:
            raise StartFailed("the answer ended before its replica could be killed", found=repr(broken.text[-80:]))
        if broken.error is None:
            raise StartFailed("the answer went on although its replica was killed", hint="please report this")
        lost = [each for each in answered if each.error is not None]
        text = (
            f"its process was killed after {len(broken.text)} characters; the client heard"
            f" {type(broken.error).__name__}: {broken.error.found or broken.error.message}"
        )
        figures: dict[str, float | int | str | bool] = {
            "error": type(broken.error).__name__,
            "characters": len(broken.text),
        }
        yield TourStep("killed", text, figures, turns[-1].text, broken.text)
        text = f"of {len(answered)} requests that were made at that moment, {len(answered) - len(lost)} were answered"
        if lost:
            text += f"; the first that was not: {lost[0].error}"
        yield TourStep("others", text, {"asked": len(answered), "answered": len(answered) - len(lost)})
        began = time.monotonic()
        again = self._ask(turns, TOKENS, seed=9, speak=self._speak)
        if again.error is not None:
            raise again.error
        text = f"asked again, the whole answer came after {again.took_s:.1f} s"
        yield TourStep("again", text, {"took_s": round(again.took_s, 3)}, turns[-1].text, again.text)
        job = killed[0]["job_id"]
        self._until(lambda: len(self._ready()) == REPLICAS and job not in [each["job_id"] for each in self._ready()])
        took = time.monotonic() - began
        yield TourStep(
            "restored", f"another replica has come for it: {REPLICAS} answer again", {"after_s": round(took, 3)}
        )

    def _none_and_back(self, turns: Sequence[SpokenTurn]) -> Iterator[TourStep]:
        """Let it have no replica while nobody asks, and ask then."""
        assert self._service is not None
        began = time.monotonic()
        self._service.scale(0, REPLICAS)
        self._until(lambda: not self._service_look()["replicas"])
        took = time.monotonic() - began
        text = f"with 0 to {REPLICAS} replicas and nobody who asks, there is none after {took:.0f} s: its GPUs are free"
        yield TourStep("none", text, {"after_s": round(took, 3)})
        found = self._ask(turns[:1], TOKENS, seed=8, speak=self._speak)
        if found.error is not None:
            raise found.error
        text = f"the request waited, and a replica was made for it: the first token came after {found.first_s:.1f} s"
        figures: dict[str, float | int | str | bool] = {
            "first_s": round(found.first_s, 3),
            "took_s": round(found.took_s, 3),
        }
        yield TourStep("back", text, figures, turns[0].text, found.text)

    def _kill_speaker(self) -> dict[str, Any]:
        """SIGKILL for the replica that has a request in hand."""
        import psutil

        for replica in self._ready():
            if not _is_speaking(replica["port"]):
                continue
            for each in psutil.net_connections("tcp"):
                if each.status == psutil.CONN_LISTEN and getattr(each.laddr, "port", 0) == replica["port"] and each.pid:
                    os.kill(each.pid, signal.SIGKILL)
                    return replica
        raise StartFailed("no replica has the request in hand", hint="please report this")

    # -- asking

    def _service_look(self) -> dict[str, Any]:
        assert self._service is not None
        return self._service.look()

    def _ready(self) -> list[dict[str, Any]]:
        return [each for each in self._service_look()["replicas"] if each["state"] == "ready"]

    def _is_open(self) -> bool:
        """Whether the host serves models to clients, and where."""
        self._url = str(self._client.http.get("/api/services")["url"])
        return bool(self._url)

    def _until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > end:
                assert self._service is not None
                raise CallTimeout(
                    f"it did not come about in {PATIENCE_S:.0f} s", found=str(self._service.why()["headline"])
                )
            time.sleep(LOOK_S)

    def _ask(self, turns: Sequence[SpokenTurn], tokens: int, seed: int, speak: Speak | None = None) -> ChatResult:
        """One answer, asked once: it is the gateway that goes to another replica with what had not begun."""
        began = time.monotonic()
        found = ChatResult()
        try:
            for piece in self._chat.stream(self._url, NAME, turns, tokens, seed):
                if isinstance(piece, ChatUsage):
                    found.usage = piece
                    continue
                found.first_s = found.first_s or time.monotonic() - began
                found.text += piece
                if speak is not None:
                    speak(piece)
        except (HostUnreachable, AnswerBroken) as error:
            found.error = error
        found.took_s = time.monotonic() - began
        return found


def _is_speaking(port: int) -> bool:
    """Whether the replica at that port has a request in hand."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(json.loads(answer.read())["in_flight"])
    except (OSError, ValueError, KeyError):
        return False


def _listed(ports: Sequence[int]) -> str:
    return " and ".join(map(str, sorted(ports)))
