"""Files brought from other hosts: whole and right, or not at all."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.links.fetching import FETCHES_MAX, WHOLE_BYTES_MIN, Fetching
from actorgrid.actors.links.pieces import PIECE_BYTES_MAX, Piece, read_piece
from actorgrid.errors import ActorGridError, HostUnreachable, MalformedMessage, NotFound
from actorgrid.supervisors.inline import InlineNode
from actorgrid.supervisors.runtime import Waiter
from actorgrid.supervisors.server import Server

DATA = bytes(range(256)) * 8_000  # three pieces
DIGEST = hashlib.sha256(DATA).hexdigest()


class Hosts:
    """What some hosts answer: their bytes, or an error."""

    def __init__(self, **hosts: bytes | ActorGridError) -> None:
        self.hosts = hosts
        self.asked: list[tuple[str, int]] = []

    async def ask(self, host_id: str, _service: str, fields: dict[str, Any]) -> object:
        self.asked.append((host_id, fields["offset"]))
        held = self.hosts[host_id]
        if isinstance(held, ActorGridError):
            raise held
        return Piece(held[fields["offset"] : fields["offset"] + fields["size"]], len(held)).to_plain()


class Asker(Server):
    """Fetches for the test, and keeps what came of it."""

    name = "asker"

    def start(self) -> None:
        self.outcomes: list[ActorGridError | None] = []

    def fetch(self, fetching: Fetching, *arguments: Any) -> None:
        self.spawn(self._fetch(fetching, *arguments))

    async def _fetch(self, fetching: Fetching, *arguments: Any) -> None:
        try:
            await fetching.fetch(*arguments)
        except ActorGridError as error:
            self.outcomes.append(error)
        else:
            self.outcomes.append(None)


@pytest.fixture
def asker() -> Asker:
    server = InlineNode().add(Asker, None)
    assert isinstance(server, Asker)
    return server


def test_a_file_comes_whole_from_the_first_host_that_has_it(asker: Asker, tmp_path: Path) -> None:
    hosts = Hosts(a=NotFound("not here"), b=HostUnreachable("away"), c=DATA, d=DATA)
    fetching = Fetching(hosts.ask)
    asker.fetch(fetching, tmp_path / DIGEST, ["a", "b", "c", "d"], "blob", {}, DIGEST)
    assert asker.outcomes == [None]
    assert (tmp_path / DIGEST).read_bytes() == DATA
    assert (tmp_path / DIGEST).stat().st_mode & 0o777 == 0o600
    assert [host for host, _ in hosts.asked] == ["a", "b", "c", "c", "c"]
    assert fetching.fetched_bytes_total == len(DATA)


@pytest.mark.parametrize("gives", [True, False])
def test_a_large_payload_is_brought_whole_or_comes_by_calls(asker: Asker, tmp_path: Path, gives: bool) -> None:
    content = bytes(WHOLE_BYTES_MIN)
    digest, hosts = hashlib.sha256(content).hexdigest(), Hosts(a=content)
    brought: list[tuple[str, str, int]] = []

    async def bring(host_id: str, digest: str, size: int, fd: int) -> bool:
        brought.append((host_id, digest, size))
        return gives and os.pwrite(fd, content, 0) == size

    asker.fetch(Fetching(hosts.ask, bring), tmp_path / digest, ["a"], "blob", {}, digest)
    assert asker.outcomes == [None] and (tmp_path / digest).read_bytes() == content
    assert brought == [("a", digest, len(content))] and (len(hosts.asked) == 1) == gives
    asker.fetch(Fetching(hosts.ask, bring), tmp_path / "result", ["a"], "result", {})
    assert (tmp_path / "result").read_bytes() == content and len(brought) == 1, "results have no digest"


@pytest.mark.parametrize("wrong", [DATA[:-1], DATA + b"x", b"", DATA[:-1] + b"x"])
def test_what_is_not_what_it_is_called_is_not_kept(asker: Asker, tmp_path: Path, wrong: bytes) -> None:
    fetching = Fetching(Hosts(a=wrong).ask)
    asker.fetch(fetching, tmp_path / DIGEST, ["a"], "blob", {}, DIGEST)
    assert isinstance(asker.outcomes[0], MalformedMessage)
    assert list(tmp_path.iterdir()) == []


def test_a_host_that_gives_less_than_it_says_is_not_asked_for_ever(asker: Asker, tmp_path: Path) -> None:
    class Short(Hosts):
        async def ask(self, host_id: str, service: str, fields: dict[str, Any]) -> object:
            self.asked.append((host_id, fields["offset"]))
            return {"data": b"" if fields["offset"] else b"some", "size": 100}

    hosts = Short()
    asker.fetch(Fetching(hosts.ask), tmp_path / "x", ["a"], "blob", {})
    assert isinstance(asker.outcomes[0], MalformedMessage) and len(hosts.asked) == 2
    assert list(tmp_path.iterdir()) == []


def test_nobody_has_it(asker: Asker, tmp_path: Path) -> None:
    fetching = Fetching(Hosts(a=NotFound("not here")).ask)
    asker.fetch(fetching, tmp_path / DIGEST, ["a"], "blob", {}, DIGEST)
    asker.fetch(fetching, tmp_path / DIGEST, [], "blob", {}, DIGEST)
    assert [type(error) for error in asker.outcomes] == [NotFound, NotFound]


def test_many_askers_of_one_file_fetch_it_once_and_many_files_wait_in_line(asker: Asker, tmp_path: Path) -> None:
    gates: list[Waiter] = []

    class Slow(Hosts):
        async def ask(self, host_id: str, service: str, fields: dict[str, Any]) -> object:
            self.asked.append((host_id, fields["offset"]))
            gates.append(Waiter())
            await gates[-1]
            return Piece(b"tiny", 4).to_plain()

    hosts = Slow()
    fetching = Fetching(hosts.ask)
    for _ in range(5):
        asker.fetch(fetching, tmp_path / "same", ["a"], "blob", {})
    for number in range(FETCHES_MAX + 9):
        asker.fetch(fetching, tmp_path / f"n{number}", ["a"], "blob", {})
    assert len(hosts.asked) == FETCHES_MAX
    done = 0
    while done < len(gates):
        gates[done].set(None)
        done += 1
    assert asker.outcomes == [None] * (5 + FETCHES_MAX + 9)
    assert len(hosts.asked) == 1 + FETCHES_MAX + 9


def test_a_piece_is_bounded_whatever_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(PIECE_BYTES_MAX + 5))
    piece = read_piece(tmp_path / "big", 0, 2**40)
    assert piece is not None and (len(piece.data), piece.size) == (PIECE_BYTES_MAX, PIECE_BYTES_MAX + 5)
    assert read_piece(tmp_path / "none", 0, 1) is None
    for plain in (None, [], {"data": "text", "size": 1}, {"data": b"", "size": -1}, {"data": b"", "size": True}):
        with pytest.raises(MalformedMessage):
            Piece.of_plain(plain)
