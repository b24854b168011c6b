"""Whoever is no host of the cluster gets nowhere: refused, counted by reason, and cheap; over real sockets."""

from __future__ import annotations

import os
import resource
import socket
import ssl
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from actorgrid.errors import ConfigError, HostUnreachable, NotSupported, PeerGone, PeerRefused, PortInUse
from actorgrid.transports.peer.frames import MAGIC, Hello, encode
from actorgrid.transports.peer.limits import PeerLimits
from actorgrid.transports.peer.net import PeerNet
from actorgrid.transports.peer.tls import PeerIdentity, TlsPipe
from tests.transports.peer_certificates import Authority
from tests.transports.peer_conformance import CLUSTER, QUICK, SocketWorld, Writer


class Stranger:
    """A connection to host "a" that says what it likes, in TLS if it has a context."""

    def __init__(self, world: SocketWorld, context: ssl.SSLContext | None = None, first: bytes = b"") -> None:
        self.world = world
        self.socket = socket.create_connection(("127.0.0.1", world.ports["a"]))
        self.socket.setblocking(False)
        self.pipe = None if context is None else TlsPipe(context, server_side=False)
        self.unsent = first
        self.read = bytearray()
        self.ciphertext = b""
        self.proven = self.closed = False
        self.error: PeerRefused | None = None

    def step(self) -> bool:
        """Move bytes; whether the connection is over."""
        if self.closed:
            return True
        try:
            if self.pipe is not None and self.error is None:
                self._step_tls(self.pipe)
            if self.unsent and self.pipe is None:
                self.unsent = self.unsent[self.socket.send(self.unsent) :]
            data = self.socket.recv(65536)
            self.closed = not data
            if self.pipe is not None:
                self.pipe.feed(data)
        except BlockingIOError:
            return False
        except OSError:
            self.closed = True
        return self.closed

    def _step_tls(self, pipe: TlsPipe) -> None:
        try:
            self.proven = self.proven or pipe.handshake()
            if self.proven:
                if self.unsent:
                    pipe.write(self.unsent)
                    self.unsent = b""
                while data := pipe.read():
                    self.read += data
        except PeerRefused as error:
            self.error = error
        finally:
            self.ciphertext += pipe.take()
            if self.ciphertext:
                self.ciphertext = self.ciphertext[self.socket.send(self.ciphertext) :]

    def until_closed(self) -> None:
        self.world.until(self.step)
        self.socket.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SocketWorld]:
    made = SocketWorld(tmp_path)
    made.add("a")
    yield made
    made.close()


def refusals(world: SocketWorld) -> dict[str, int]:
    return dict(world.hosts["a"].net.refusals)


def hello(low: int = 1, high: int = 1, lane: str = "control", magic: str = MAGIC) -> bytes:
    return encode(Hello(magic, low, high, "a stranger", lane))


def raw(body: bytes, flags: int = 0) -> bytes:
    return struct.pack(">IB", len(body), flags) + body


def assert_unharmed(world: SocketWorld) -> None:
    world.add("friend")
    assert world.ask("friend", "a", "echo", b"still there") == b"still there"
    assert world.hosts["a"].net.stats()["half_open"] == 0


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\5\0hello", b"SSH-2.0-x\r\n"])
def test_plain_text(world: SocketWorld, first: bytes) -> None:
    Stranger(world, first=first).until_closed()
    assert refusals(world) == {"plain_text": 1}
    assert_unharmed(world)


def test_bytes_that_only_begin_like_tls(world: SocketWorld) -> None:
    Stranger(world, first=b"\x16\x03\x01\x02\x00" + bytes(512)).until_closed()
    Stranger(world, first=b"\x16" * 200).until_closed()
    assert refusals(world) == {"tls": 2}
    assert_unharmed(world)


def test_tls_before_1_3(world: SocketWorld) -> None:
    context = world.authority.identity(world.folder, CLUSTER, "old").client
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
    stranger = Stranger(world, context)
    stranger.until_closed()
    assert refusals(world) == {"tls": 1}
    assert stranger.error is not None
    assert_unharmed(world)


def test_no_certificate(world: SocketWorld) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    Stranger(world, context, hello()).until_closed()
    assert refusals(world) == {"tls": 1}
    assert_unharmed(world)


def test_a_certificate_of_another_authority(world: SocketWorld) -> None:
    other = Authority("another authority").identity(world.folder, CLUSTER, "b", authorities=world.authority.pem)
    stranger = Stranger(world, other.client, hello())
    stranger.until_closed()
    assert refusals(world) == {"certificate": 1}
    assert stranger.error is not None
    assert stranger.error.details["refusal"] == "refused_us"
    assert_unharmed(world)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"days": (-3, -1)}, "expired"),
        ({"days": (1, 3)}, "expired"),
        ({"use": (ExtendedKeyUsageOID.SERVER_AUTH,)}, "certificate"),
        ({"uris": ()}, "wrong_name"),
        ({"uris": ("actorgrid://c2/host/b",)}, "wrong_name"),
        ({"uris": ("actorgrid://c1/host/b", "actorgrid://c1/host/c")}, "wrong_name"),
        ({"uris": ("actorgrid://c1/host/b/c",)}, "wrong_name"),
        ({"uris": ("https://c1/host/b",)}, "wrong_name"),
        ({"uris": ("actorgrid://c1/host/",)}, "wrong_name"),
        ({"uris": ("actorgrid://c1/host/a",)}, "unknown_host"),
    ],
)
def test_a_certificate_that_is_not_right(world: SocketWorld, wrong: dict[str, Any], reason: str) -> None:
    identity = world.authority.identity(world.folder, CLUSTER, "b", **wrong)
    Stranger(world, identity.client, hello()).until_closed()
    assert refusals(world) == {reason: 1}
    assert not world.hosts["a"].net.stats()["hosts"]
    assert_unharmed(world)


def test_a_host_that_the_ledger_does_not_have_is_told_why(world: SocketWorld) -> None:
    world.hosts["a"].refuses.add("b")
    world.add("b")
    with pytest.raises(HostUnreachable, match="is no host of this cluster now"):
        world.ask("b", "a", "echo", b"")
    assert refusals(world) == {"unknown_host": 1}
    assert world.hosts["b"].net.refusals == {"refused_us": 1}


def test_a_host_that_is_removed_loses_its_links(world: SocketWorld) -> None:
    world.add("b")
    answer = world.hosts["b"].net.call("a", "never", b"", 10.0)
    world.until(lambda: world.hosts["a"].asked)
    net = world.hosts["a"].net
    assert isinstance(net, PeerNet)
    assert net.drop_refused() == 0
    world.hosts["a"].refuses.add("b")
    assert net.drop_refused() == 1
    world.until(lambda: answer.done)
    with pytest.raises(PeerGone):
        answer.result()
    assert refusals(world) == {"unknown_host": 1}


def test_who_answers_at_a_hosts_address_must_be_that_host(world: SocketWorld) -> None:
    world.ports["c"] = world.ports["a"]
    world.add("b")
    with pytest.raises(HostUnreachable, match="another host's"):
        world.ask("b", "c", "echo", b"")
    assert world.hosts["b"].net.refusals == {"wrong_name": 1}
    assert not world.hosts["a"].asked


def test_a_server_of_another_authority_is_not_believed(world: SocketWorld) -> None:
    identity = Authority("another").identity(world.folder, CLUSTER, "b")
    net = make_net(world, identity)
    answer = net.call("a", "echo", b"", 10.0)
    world.until(lambda: answer.done)
    with pytest.raises(HostUnreachable, match="certificate is refused"):
        answer.result()
    assert net.refusals == {"certificate": 1}
    net.close()


def test_a_host_whom_another_cluster_still_calls_says_how_it_gets_back(
    world: SocketWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """As after `up` on the wiped directory of a former member: the others call the address that they know."""
    net = make_net(world, Authority("the cluster before").identity(world.folder, CLUSTER, "b"))
    answer = net.call("a", "echo", b"", 10.0)
    world.until(lambda: answer.done and world.hosts["a"].net.refusals["refused_us"] > 0)
    net.close()
    (said,) = [
        record.message for record in caplog.records if "does not believe our cluster's authority" in record.message
    ]
    assert "127.0.0.1" in said and "actorgrid leave" in said and "--join" in said


def make_net(world: SocketWorld, identity: PeerIdentity, **more: Any) -> PeerNet:
    return PeerNet(
        world.loop,
        identity,
        None,
        admit=lambda _host, _fingerprint: None,
        on_call=lambda call: call.reply(b""),
        on_cast=lambda *_: None,
        on_stream=lambda _stream: None,
        **{"limits": QUICK, "resolve": lambda other: [("127.0.0.1", world.ports[other])], **more},
    )


# -- after TLS


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        (hello(magic="somethingelse"), "malformed"),
        (hello(lane="third"), "malformed"),
        (raw(msgpack.packb([4, 1])), "malformed"),
        (raw(b"\xff" * 40), "malformed"),
        (b"\xff" * 40, "malformed"),
        (struct.pack(">IB", 2**31, 0), "oversize"),
        (struct.pack(">IB", 4097, 0), "oversize"),
        (hello(2, 7), "version"),
        (hello() + struct.pack(">IB", 2**31, 0), "oversize"),
        (hello() + raw(b"garbage"), "malformed"),
        (hello() + hello(), "malformed"),
        (hello() + raw(msgpack.packb([11, 5, b"an answer to nothing"])), "malformed"),
        (hello() + raw(msgpack.packb([10, 5, "t", b""])) * 2, "malformed"),
        (hello() + raw(msgpack.packb([21, 5, b"of no stream"]), 2), "malformed"),
        (hello() + raw(msgpack.packb([20, 2, "t", b"", 9, False])), "malformed"),
        (hello() + raw(msgpack.packb([20, 1, "t", b"", 9, False])) + raw(msgpack.packb([22, 1, 2**40])), "malformed"),
    ],
)
def test_a_host_that_says_what_it_must_not(world: SocketWorld, says: bytes, reason: str) -> None:
    identity = world.authority.identity(world.folder, CLUSTER, "b")
    stranger = Stranger(world, identity.client, says)
    stranger.until_closed()
    assert refusals(world) == {reason: 1}
    assert reason.encode() in stranger.read  # its Bye says why
    assert_unharmed(world)


def test_a_stream_of_more_than_was_granted(world: SocketWorld) -> None:
    identity = world.authority.identity(world.folder, CLUSTER, "b")
    world.hosts["a"].consumes = False
    piece = raw(msgpack.packb([21, 1, bytes(60_000)]), 2)
    opened = hello(lane="bulk") + raw(msgpack.packb([20, 1, "t", b"", 9, False]))
    stranger = Stranger(world, identity.client, opened)
    world.until(lambda: stranger.step() or world.hosts["a"].streams)
    stranger.unsent = piece * 10
    stranger.until_closed()
    assert refusals(world) == {"malformed": 1}
    assert sum(map(len, world.hosts["a"].read)) <= QUICK.stream_window_bytes


# -- floods


def test_a_connection_that_says_nothing_is_closed_in_time(world: SocketWorld) -> None:
    Stranger(world).until_closed()
    half = Stranger(world, first=b"\x16\x03\x01\x02")
    half.until_closed()
    assert refusals(world) == {"handshake_timeout": 2}
    assert_unharmed(world)


def test_a_host_that_proves_itself_and_says_no_hello_is_closed_in_time(world: SocketWorld) -> None:
    Stranger(world, world.authority.identity(world.folder, CLUSTER, "b").client).until_closed()
    assert refusals(world) == {"handshake_timeout": 1}


def flooded(tmp_path: Path, limits: PeerLimits, connections: int) -> SocketWorld:
    world = SocketWorld(tmp_path, limits)
    world.add("a")
    strangers = [Stranger(world) for _ in range(connections)]
    world.until(lambda: sum(stranger.step() for stranger in strangers) >= connections - 4)
    world.strangers = strangers  # type: ignore[attr-defined] # they stay open
    return world


def end(world: SocketWorld) -> None:
    world.close()
    for stranger in world.strangers:  # type: ignore[attr-defined]
        stranger.socket.close()


def test_too_many_half_open_ones_of_one_address(tmp_path: Path) -> None:
    world = flooded(tmp_path, replace(QUICK, handshake_s=60.0, half_open_per_address_max=4), 12)
    assert refusals(world) == {"too_many_half_open": 8}
    assert world.hosts["a"].net.stats()["half_open"] == 4
    end(world)


def test_too_many_half_open_ones_in_all_cost_the_oldest(tmp_path: Path) -> None:
    world = flooded(tmp_path, replace(QUICK, handshake_s=60.0, half_open_max=4), 12)
    assert refusals(world) == {"too_many_half_open": 8}
    world.add("b")
    assert world.ask("b", "a", "echo", b"an honest one comes in") == b"an honest one comes in"
    end(world)


def test_connections_that_were_refused_are_not_half_open_any_more(tmp_path: Path) -> None:
    world = SocketWorld(tmp_path, replace(QUICK, half_open_per_address_max=2))
    world.add("a")
    for _ in range(6):
        Stranger(world, first=b"nonsense").until_closed()
    assert refusals(world) == {"plain_text": 6}
    world.close()


def test_an_address_that_knocks_too_fast_is_closed_unread(tmp_path: Path) -> None:
    world = SocketWorld(tmp_path, replace(QUICK, connects_per_s=0.0, connects_burst=5))
    world.add("a")
    for _ in range(8):
        Stranger(world, first=b"nonsense").until_closed()
    assert refusals(world) == {"plain_text": 5, "too_fast": 3}
    world.close()


def test_hosts_that_prove_themselves_use_up_no_knocks(tmp_path: Path) -> None:
    world = SocketWorld(tmp_path, replace(QUICK, connects_per_s=0.0, connects_burst=2))
    world.add("a")
    for _ in range(5):
        world.add("b")
        assert world.ask("b", "a", "echo", b"again") == b"again"
        world.kill("b")
    assert refusals(world) == {}
    world.close()


# -- certificates change


def test_new_links_use_the_new_certificate_and_old_ones_go_on(world: SocketWorld) -> None:
    world.add("b")
    assert world.ask("b", "a", "echo", b"old") == b"old"
    other = Authority("the next authority")
    both = world.authority.pem + other.pem
    for name in "ab":  # first believe both, then show the new one
        net = world.hosts[name].net
        assert isinstance(net, PeerNet)
        net.renew(world.authority.identity(world.folder, CLUSTER, name, authorities=both))
    net = world.hosts["b"].net
    assert isinstance(net, PeerNet)
    net.renew(other.identity(world.folder, CLUSTER, "b", authorities=both))
    assert net.stats()["hosts"]["a"]["links"] == 1
    assert world.ask("b", "a", "echo", b"on the old link") == b"on the old link"
    stream = net.open_stream("a", "bulk", b"")  # the first on its lane: a new link
    world.until(lambda: world.hosts["a"].streams)
    assert not stream.over
    with pytest.raises(NotSupported, match="keeps its host id"):
        net.renew(world.authority.identity(world.folder, CLUSTER, "c"))


def test_contexts_that_would_let_strangers_in_are_refused(tmp_path: Path) -> None:
    authority = Authority()

    def spoiled(**changes: Any) -> ssl.SSLContext:
        context = authority.identity(tmp_path, CLUSTER, "a").server
        for name, value in changes.items():
            setattr(context, name, value)
        return context

    good = authority.identity(tmp_path, CLUSTER, "a")
    for bad in (
        {"verify_mode": ssl.CERT_OPTIONAL},
        {"verify_mode": ssl.CERT_NONE},
        {"minimum_version": ssl.TLSVersion.TLSv1_2},
        {"num_tickets": 2},
    ):
        with pytest.raises(ConfigError):
            PeerIdentity(CLUSTER, "a", spoiled(**bad), good.client)
    for bad_id in ("", "A", "a/b", "a" * 64):
        with pytest.raises(ConfigError):
            PeerIdentity(CLUSTER, bad_id, good.server, good.client)


def test_a_port_that_is_taken_is_named(world: SocketWorld) -> None:
    world.ports["b"] = world.ports["a"]
    with pytest.raises(PortInUse, match=str(world.ports["a"])):
        world.add("b")
    del world.hosts["b"]


def test_a_listener_without_descriptors_left_takes_connections_again_later(world: SocketWorld) -> None:
    waiting = socket.socket()
    highest = os.dup(0)
    os.close(highest)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
    try:
        waiting.connect(("127.0.0.1", world.ports["a"]))
        for _ in range(20):
            world.loop.step()
        assert world.hosts["a"].net.stats()["half_open"] == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    world.until(lambda: world.hosts["a"].net.stats()["half_open"] == 1)
    waiting.close()


# -- sockets


def test_addresses_are_tried_in_turn(world: SocketWorld) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        dead = unused.getsockname()[1]
    identity = world.authority.identity(world.folder, CLUSTER, "b")
    addresses = [("127.0.0.1", dead), ("127.0.0.1", world.ports["a"])]
    net = make_net(world, identity, resolve=lambda _host: addresses)
    answer = net.call("a", "echo", b"the second", 10.0)
    world.until(lambda: answer.done)
    assert answer.result() == b"the second"
    net.close()


def test_a_full_socket_goes_on_when_the_kernel_takes_more_not_at_a_tick(tmp_path: Path) -> None:
    window = 16 * 2**20
    limits = replace(QUICK, tick_s=3600.0, stream_window_bytes=window, stream_unsent_bytes=window)
    world = SocketWorld(tmp_path, limits)
    world.add("a")
    world.add("b")
    writer = Writer(world.hosts["a"].net.open_stream("b", "bulk", b""), bytes(window))
    world.until(lambda: world.hosts["b"].read_end)
    assert sum(map(len, world.hosts["b"].read)) == window
    assert not writer.left
    world.close()
