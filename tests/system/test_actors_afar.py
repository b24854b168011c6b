"""Actors of the user's from a machine that is no host: made, found and called through a host's door."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import actorgrid
from actorgrid import user_actor_context
from actorgrid.errors import ActorDied, ActorRestarted, NoSuchActor
from tests.processes import until
from tests.system.cluster_host import Two
from tests.system.test_sessions_afar import PLENTY_S, afar, key, wire_to

pytestmark = pytest.mark.system
__all__ = ["key"]

HERE: dict[str, Any] = {"gpus": 0.3, "gpu_models": ["H100-80GB"], "cpus": 0.1}
"""What only the host has whose door is used."""
THERE: dict[str, Any] = {"gpus": 0.3, "gpu_models": ["A100-40GB"], "cpus": 0.1}
BOTH = pytest.mark.parametrize("where", [HERE, THERE], ids=["on the door's host", "on another host"])


@actorgrid.actor(cpus=0.1)
class Notes:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.noted: list[int] = []

    def note(self, number: int) -> int:
        self.noted.append(number)
        return number

    def all(self) -> list[int]:
        return self.noted

    def reversed(self, value: bytes) -> bytes:
        return value[::-1]

    def home(self) -> tuple[str, int]:
        held = user_actor_context.here
        assert held is not None
        return held.host_id, os.getpid()

    def wait(self, folder: str) -> None:
        Path(folder, "begun").touch()
        until(Path(folder, "go").exists, "the word to go on")

    def save(self) -> list[int]:
        return self.noted

    def load(self, state: list[int]) -> None:
        self.noted = state


def note_many(notes: Any, first: int, count: int) -> list[int]:
    return [future.result(PLENTY_S) for future in [notes.note(first + number) for number in range(count)]]


def make_notes() -> Any:
    """Make an actor in a task; its creator ends with the cluster's default client there."""
    return Notes.options(detached=True, name="of a task").create()


@BOTH
def test_it_is_made_and_called_from_afar_over_connections_that_break(
    two: Two, key: dict[str, Any], where: dict[str, Any]
) -> None:
    with wire_to(two[0]) as wire, afar(key, wire) as client:
        notes = Notes.options(**where).on(client).create()
        futures = []
        for number in range(300):
            futures.append(notes.note(number))
            if number % 60 == 30:
                futures[-1].result(PLENTY_S)
                wire.cut()
        assert [future.result(PLENTY_S) for future in futures] == list(range(300))
        assert notes.all().result(PLENTY_S) == list(range(300)), "in their order, and each once"
        big = os.urandom(6_000_000)
        assert notes.reversed(big).result(PLENTY_S) == big[::-1]
        # Tasks of both hosts have the handle, and find it.
        for each, there in enumerate((HERE, THERE), 1):
            task = client.submit(note_many, notes, each * 1000, 20, **there)
            assert task.result(PLENTY_S) == list(range(each * 1000, each * 1000 + 20))
        assert len(notes.all().result(PLENTY_S)) == 340
        notes.stop()
        with pytest.raises(ActorDied, match="stopped"):
            notes.all().result(PLENTY_S)
    until(lambda: two[0].client().allocations() == [], "its lease is returned")


@BOTH
def test_calls_are_begun_once_when_it_dies_and_its_state_goes_on(
    two: Two, key: dict[str, Any], tmp_path: Path, where: dict[str, Any]
) -> None:
    with afar(key) as client:
        notes = Notes.options(**where, max_restarts=1, checkpoint_every=0).on(client).create()
        note_many(notes, 0, 5)
        notes.checkpoint().result(PLENTY_S)
        pid = notes.home().result(PLENTY_S)[1]
        waiting, behind = notes.wait(str(tmp_path)), [notes.note(number) for number in range(5, 10)]
        until((tmp_path / "begun").exists, "the first call has begun")
        os.kill(pid, signal.SIGKILL)
        assert isinstance(waiting.exception(PLENTY_S), ActorRestarted)
        assert [future.result(PLENTY_S) for future in behind] == list(range(5, 10)), "they had not begun"
        assert notes.all().result(PLENTY_S) == list(range(10))


def test_names_are_found_from_afar_and_what_is_made_there_is_found_on_hosts(two: Two, key: dict[str, Any]) -> None:
    on_host = two[0].client()
    with on_host, afar(key) as client, afar(key) as other:
        made = [
            Notes.options(**where, name=f"notes {number}").on(on_host).create()
            for number, where in enumerate((HERE, THERE))
        ]
        for number, notes in enumerate(made):
            notes.note(number).result(PLENTY_S)
            assert client.actor(f"notes {number}").all().result(PLENTY_S) == [number]
        with pytest.raises(NoSuchActor):
            client.actor("nobody")
        ours = Notes.options(name="from afar").on(client).create()
        assert ours.note(7).result(PLENTY_S) == 7
        found = [one.actor("from afar") for one in (on_host, other)]
        assert [one.all().result(PLENTY_S) for one in found] == [[7], [7]]
        assert Notes.options(name="from afar").on(other).get_or_create().all().result(PLENTY_S) == [7]
        client.close()
        for one in found:
            with pytest.raises(ActorDied):
                one.all().result(PLENTY_S)


def test_detached_ones_are_made_and_called_from_afar(two: Two, key: dict[str, Any]) -> None:
    with afar(key) as client:
        notes = Notes.options(detached=True, name="detached").on(client).create()
        assert notes.note(1).result(PLENTY_S) == 1
    with afar(key) as client:
        found = client.actor("detached")
        assert found.all().result(PLENTY_S) == [1]
        found.stop()
        with pytest.raises(ActorDied, match="stopped"):
            found.all().result(PLENTY_S)
        # A handle that comes as a result is called by the door of the client that is here.
        of_task = client.submit(make_notes).result(PLENTY_S)
        assert of_task.note(3).result(PLENTY_S) == 3
        of_task.stop()


@pytest.mark.parametrize("server", ["gateway", "links"])
def test_servers_that_die_under_way_cost_no_call(two: Two, key: dict[str, Any], tmp_path: Path, server: str) -> None:
    with afar(key) as client:
        notes = Notes.options(**THERE).on(client).create()
        home = notes.home().result(PLENTY_S)
        waiting, behind = notes.wait(str(tmp_path)), [notes.note(number) for number in range(50)]
        until((tmp_path / "begun").exists, "the first call has begun")
        for host in two:
            os.kill(int(host.pid_of(server) or 0), signal.SIGKILL)
        (tmp_path / "go").touch()
        assert waiting.result(PLENTY_S) is None
        assert [future.result(PLENTY_S) for future in behind] == list(range(50))
        assert notes.home().result(PLENTY_S) == home
        assert notes.all().result(PLENTY_S) == list(range(50))
