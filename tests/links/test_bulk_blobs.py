"""Large payloads over several connections: two agents' halves with real TLS between them, and real files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from actorgrid.actors.links.bulk import BulkObjects
from actorgrid.errors import MalformedBody, NotFound, PeerGone
from actorgrid.transports.bulk.connection import PiecesConnection
from tests.objects.test_bulk_objects import Agents

MIB = 2**20


class BlobAgents(Agents):
    """h2 has payloads in a folder."""

    def __init__(self, folder: Path) -> None:
        self.blobs = folder / "blobs"
        self.blobs.mkdir()

        class NoStore:
            path = str(folder / "store.sock")

        super().__init__(folder, NoStore())  # type: ignore[arg-type]
        self.far = BulkObjects(folder / "store.sock", self._dial, blobs_dir=self.blobs)
        self.net.on_pieces = self.far.served.serve

    def keep(self, content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        (self.blobs / digest).write_bytes(content)
        return digest


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[BlobAgents]:
    made = BlobAgents(tmp_path)
    yield made
    made.close()


def test_a_payload_comes_whole_over_several_connections(agents: BlobAgents) -> None:
    content = os.urandom(9 * MIB)
    with agents.near.bring_blob("h2", agents.keep(content), len(content)) as found:
        assert found[:] == content
    assert agents.dials == 2 and agents.near.brought_total == 1


def test_one_that_is_not_there_or_shorter_than_it_was_said_to_be_is_refused(agents: BlobAgents) -> None:
    with pytest.raises(NotFound):
        agents.near.bring_blob("h2", "0" * 64, MIB)
    with pytest.raises(MalformedBody):
        agents.near.bring_blob("h2", agents.keep(bytes(1000)), MIB)
    with pytest.raises(NotFound):
        agents.near.bring_blob("h2", agents.keep(b""), MIB)


def test_one_that_breaks_in_the_middle_of_its_pieces_is_told_as_lost(
    agents: BlobAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Again and again, until it is given up: the memory that it came into is let go of then."""
    send = PiecesConnection.send

    def breaks(self: PiecesConnection, *parts: bytes | memoryview) -> None:
        if len(parts[0]) > MIB // 2:
            send(self, memoryview(parts[0])[: MIB // 4])
            self.break_off()
            raise PeerGone("cut")
        send(self, *parts)

    monkeypatch.setattr(PiecesConnection, "send", breaks)
    content = os.urandom(3 * MIB)
    with pytest.raises(PeerGone):
        agents.near.bring_blob("h2", agents.keep(content), len(content))
    assert agents.near.failed_total == 1


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "", "A" * 64, "0" * 63])
def test_only_digests_are_names(agents: BlobAgents, name: str) -> None:
    (agents.blobs.parent / "secret").write_bytes(bytes(MIB))
    with pytest.raises(MalformedBody):
        agents.near.bring_blob("h2", name, 1000)


def test_no_link_of_the_file_system_is_followed(agents: BlobAgents) -> None:
    (agents.blobs.parent / "secret").write_bytes(bytes(MIB))
    (agents.blobs / ("a" * 64)).symlink_to(agents.blobs.parent / "secret")
    os.mkfifo(agents.blobs / ("b" * 64))
    for digest in ("a" * 64, "b" * 64):
        with pytest.raises(NotFound):
            agents.near.bring_blob("h2", digest, 1000)
