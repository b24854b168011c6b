"""``demo serve``: a model of our own, served by two replicas, chatted with, killed in the middle."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict

import click

from actorgrid.errors import StartFailed

from .call import CommandContext, json_option, pass_call
from .printing import say, visible
from .show import on_terminal

WIDTH = 100
SHOWN_CHARACTERS = 70


@click.command(name="serve")
@json_option
@pass_call
def serve(call: CommandContext) -> None:
    """Serve a model of our own: chat with it, kill a replica in the middle, let it go to none and come back.

    Starts a host of its own in a temporary directory, and on it two replicas of a small language model that has read
    this project's documentation, and writes like it. Chats with them (with OpenAI's client, where it is installed),
    kills one while it speaks, and says what its client and others saw; lets there be none while nobody asks, and asks.
    It takes about two minutes, one of them until the service goes to none. Nothing is downloaded or left behind.
    """
    import actorgrid
    from actorgrid.demo.chat_clients import chat_client
    from actorgrid.demo.serving_tour import ServingTour

    from .demo import sigterm_as_interrupt

    _check_numpy()
    chat = chat_client()
    steps = []
    began = time.monotonic()
    with (
        sigterm_as_interrupt(),
        actorgrid.LocalCluster(gpus=None) as cluster,
        _Listener.listening(call.json) as listener,
    ):
        if not call.json:
            say(f"host up in {time.monotonic() - began:.1f} s at {cluster.url}; asking with {chat.name}")
        for step in ServingTour(cluster.client(), chat, listener.hear).steps():
            steps.append(asdict(step))
            listener.silence()
            if not call.json:
                _show(step.question, step.answer, step.text)
    if call.json:
        call.document({"client": chat.name, "steps": steps, "took_s": round(time.monotonic() - began, 3)})
    else:
        say(f"all in {time.monotonic() - began:.0f} s; the same with a model of yours: docs/python_services.md")


def _check_numpy() -> None:
    from importlib.util import find_spec

    if find_spec("numpy") is None:
        raise StartFailed("the model computes with numpy, which is not installed", hint="pip install 'actorgrid[demo]'")


def _show(question: str, answer: str, text: str) -> None:
    import textwrap

    if question:
        say()
        say(f"you     {question}")
    if answer:
        lines = textwrap.wrap(visible(answer, cell=True), WIDTH) or [""]
        for number, line in enumerate(lines):
            say(f"{'model' if not number else '':<7} {line}")
    say(f"        {text}" if question or answer else text)


class _Listener:
    """Shows on a terminal what is being said; silent elsewhere."""

    def __init__(self, update: Callable[[str], None] | None) -> None:
        self._update = update
        self._heard = ""

    @classmethod
    @contextmanager
    def listening(cls, as_json: bool) -> Iterator[_Listener]:
        """For as long as the tour goes on."""
        if as_json or not on_terminal():
            yield cls(None)
            return
        from rich.console import Console
        from rich.text import Text

        console = Console(stderr=True)
        with console.status("starting replicas") as status:
            yield cls(lambda text: status.update(Text(visible(text, cell=True))))

    def hear(self, piece: str) -> None:
        """A piece of an answer has come."""
        if self._update is not None:
            self._heard += piece
            self._update(self._heard[-SHOWN_CHARACTERS:])

    def silence(self) -> None:
        """An answer is over."""
        self._heard = ""
        if self._update is not None:
            self._update("")
