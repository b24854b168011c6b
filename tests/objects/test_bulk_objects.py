"""Large objects of another host over several connections: two agents' halves, a real store, real TLS between them."""

from __future__ import annotations

import fcntl
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from actorgrid.actors.links.bulk import BulkObjects
from actorgrid.errors import ActorGridError, HostUnreachable, ObjectLost
from actorgrid.objects.bring import SEALS
from actorgrid.objects.far import FarSpace
from actorgrid.supervisors.inline import InlineNode
from actorgrid.transports.bulk.connection import PiecesConnection, dial
from actorgrid.transports.frames import encode_frame
from actorgrid.transports.object_frames import ObjectKey, SpaceAbout, bulk_path, far_path
from actorgrid.transports.peer.net import PeerNet
from tests.transports.peer_certificates import Authority

from .rig import MIB, StoreProcess
from .test_far import SECRET, Wires, read
from .test_store import array, put


class Agents:
    """What both agents have of it: h2 has the store, h1 the process that reads."""

    def __init__(self, folder: Path, store: StoreProcess) -> None:
        authority = Authority()
        self.here = authority.identity(folder, "c1", "h1")
        self._loop = InlineNode(real_time=True)
        self.net = PeerNet(
            self._loop,
            authority.identity(folder, "c1", "h2"),
            ("127.0.0.1", 0),
            resolve=lambda _host_id: [],
            admit=lambda _host_id, _fingerprint: None,
            on_call=lambda call: call.reply(b""),
            on_cast=lambda _host_id, _target, _body: None,
            on_stream=lambda stream: stream.end(),
        )
        self.near_path = str(folder / "near.sock")
        self.far = BulkObjects(Path(store.path), self._dial)
        self.near = BulkObjects(Path(self.near_path), self._dial)
        self.net.on_pieces = self.far.served.serve
        self.near.listen(Path(bulk_path(self.near_path)))
        self.dials = 0
        self.dials_max = 100
        self._over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over:
            self._loop.step(0.05)

    def _dial(self, host_id: str) -> PiecesConnection:
        self.dials += 1
        if self.dials > self.dials_max:
            raise HostUnreachable("no more connections")
        return dial(self.here, [("127.0.0.1", self.net.port)], host_id, lambda _host_id, _fingerprint: None)

    def close(self) -> None:
        self.near.close()
        self.far.close()
        self._over = True
        self._thread.join(30)
        self.net.close()


@pytest.fixture
def agents(store: StoreProcess, tmp_path: Path) -> Iterator[Agents]:
    made = Agents(tmp_path, store)
    yield made
    made.close()


@pytest.fixture
def far_space(agents: Agents, store: StoreProcess) -> Iterator[FarSpace]:
    wires = Wires(far_path(agents.near_path), {"h2": store.path})
    space = FarSpace(agents.near_path, "h2", SECRET, SpaceAbout(home="h2"))
    yield space
    space.close()
    space.hang_up()
    wires.close()


def test_a_large_object_comes_over_several_connections(
    store: StoreProcess, agents: Agents, far_space: FarSpace
) -> None:
    owner = store.space(SECRET)
    held = put(owner, array(25 * MIB))
    assert np.array_equal(read(far_space, held.key), array(25 * MIB))
    assert agents.dials == 4 and agents.near.brought_total == 1
    assert agents.near.brought_bytes_total == held.key.size
    owner.close()


@pytest.mark.system
def test_one_that_lies_on_the_disk_there_comes_as_well(
    store: StoreProcess, agents: Agents, far_space: FarSpace
) -> None:
    owner = store.space(SECRET)
    held = put(owner, array(100 * MIB))
    assert np.array_equal(read(far_space, held.key), array(100 * MIB))
    assert agents.near.brought_total == 1
    owner.close()


def test_where_no_connection_for_pieces_is_to_be_had_it_comes_over_the_agents_streams(
    store: StoreProcess, agents: Agents, far_space: FarSpace
) -> None:
    agents.dials_max = 0
    owner = store.space(SECRET)
    held = put(owner, array(9 * MIB))
    assert np.array_equal(read(far_space, held.key), array(9 * MIB))
    assert agents.near.brought_total == 0 and agents.near.failed_total == 1
    owner.close()


def test_what_is_gone_is_said_to_be(store: StoreProcess, agents: Agents, far_space: FarSpace) -> None:
    owner = store.space(SECRET)
    held = put(owner, array(9 * MIB))
    gone = held.key._replace(number=held.key.number + 1000)
    with pytest.raises(ObjectLost):
        read(far_space, gone)
    owner.close()


def test_another_secret_gets_nothing(store: StoreProcess, agents: Agents) -> None:
    owner = store.space(SECRET)
    held = put(owner, array(9 * MIB))
    wires = Wires(far_path(agents.near_path), {"h2": store.path})
    stranger = FarSpace(agents.near_path, "h2", bytes(32), SpaceAbout(home="h2"))
    with pytest.raises(ActorGridError):
        read(stranger, held.key)
    stranger.close()
    stranger.hang_up()
    wires.close()
    owner.close()


@pytest.mark.parametrize("what", ["not sealed", "too small", "no memory", "no frame", "negative"])
def test_a_process_that_asks_for_what_cannot_be_is_hung_up_on(agents: Agents, what: str) -> None:
    fd = os.memfd_create("hostile", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, MIB // 2 if what == "too small" else MIB)
    if what != "not sealed":
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    key = ObjectKey("0" * 16, 1, "h2", -MIB if what == "negative" else MIB)
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    door.settimeout(60)
    door.connect(bulk_path(agents.near_path))
    data = b"\0\0\0\5hello" if what == "no frame" else encode_frame(["bring", "h2", SECRET, list(key)])
    socket.send_fds(door, [data], [] if what == "no memory" else [fd])
    assert door.recv(100) == b""
    assert not agents.dials
    door.close()
    os.close(fd)
