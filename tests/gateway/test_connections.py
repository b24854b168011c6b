"""Who keeps a place when connections are more than the host takes: those that showed a token, and this machine's."""

from __future__ import annotations

import random
import socket
import ssl
from contextlib import ExitStack
from typing import Any

import pytest

from actorgrid.actors.gateway.server import connections, loop
from actorgrid.actors.gateway.server.connections import (
    CONNECTIONS_MAX,
    OF_CALLER_MAX,
    RESERVED_HERE,
    UNPROVEN_MAX,
    UNPROVEN_OF_NETWORK_MAX,
    Connections,
)


class Door:
    """Connections that are opened, and which are still there."""

    def __init__(self) -> None:
        self.table = Connections()
        self.open: list[Fake] = []

    def admit(self, network: str = "10.0.0.1", here: bool = False, caller: str | None = None) -> Fake | None:
        fake = Fake(self)
        if not self.table.add(fake, network, here):
            return None
        self.open.append(fake)
        if caller is not None and not self.table.prove(fake, caller):
            fake.close_now()
            self.table.remove(fake)
            return None
        return fake


class Fake:
    def __init__(self, door: Door) -> None:
        self.door = door
        self.idle = True

    def close_now(self) -> None:
        self.door.open.remove(self)


def test_strangers_take_the_places_of_older_strangers_and_of_nobody_else() -> None:
    door = Door()
    proven = [door.admit(f"10.1.0.{number}", caller=f"user {number % 5}") for number in range(200)]
    here = [door.admit("127.0.0.1", here=True) for _ in range(50)]
    for number in range(5_000):
        assert door.admit(f"10.2.{number % 250}.{number % 7}") is not None
    assert door.table.unproven == UNPROVEN_MAX + 50
    assert set(door.open) >= {*proven, *here}
    newest = door.admit("10.9.9.9")
    assert newest is not None and door.table.prove(newest, "ann") and newest in door.open


def test_one_address_has_so_many_unproven_and_its_own_oldest_goes() -> None:
    door = Door()
    other = door.admit("10.0.0.2")
    first = door.admit("10.0.0.1")
    for _ in range(1_024):
        door.admit("10.0.0.1")
    assert len(door.open) == UNPROVEN_OF_NETWORK_MAX + 1
    assert other in door.open and first not in door.open


def test_this_machine_has_a_reserve_and_does_not_fill_all_of_it_without_a_token() -> None:
    door = Door()
    count = CONNECTIONS_MAX - RESERVED_HERE
    for number in range(count):
        fake = door.admit(f"10.0.{number % 200}.1", caller=f"user {number % 9}")
        assert fake is not None
        fake.idle = False
    assert door.admit("10.0.0.1") is None, "all are busy"
    assert door.table.refused_total == 1
    mine = door.admit("127.0.0.1", here=True, caller="admin")
    assert mine is not None
    for _ in range(1_000):
        assert door.admit("127.0.0.1", here=True) is not None
    assert mine in door.open
    assert len(door.open) == CONNECTIONS_MAX
    door.open[0].idle = True
    assert door.admit("10.0.0.1", caller="bob") is not None, "who is idle gives way"


def test_one_key_does_not_take_all() -> None:
    door = Door()
    busy = [door.admit(f"10.0.0.{number % 100}", caller="ann") for number in range(OF_CALLER_MAX)]
    for fake in busy:
        assert fake is not None
        fake.idle = False
    assert door.admit(caller="ann") is None
    assert door.admit(caller="bob") is not None
    assert busy[7] is not None
    busy[7].idle = True
    assert door.admit(caller="ann") is not None
    assert busy[7] not in door.open


def test_the_sums_are_those_of_what_is_open_whatever_happens() -> None:
    dice = random.Random(5)
    door = Door()
    for _ in range(20_000):
        if door.open and dice.random() < 0.3:
            fake = dice.choice(door.open)
            if dice.random() < 0.5:
                fake.close_now()
                door.table.remove(fake)
                door.table.remove(fake)
            else:
                fake.idle = not fake.idle
                door.table.prove(fake, f"user {dice.randrange(3)}")
            continue
        caller = dice.choice([None, "ann", "bob"])
        door.admit(f"10.0.0.{dice.randrange(60)}", dice.random() < 0.3, caller)
        assert len(door.table) == len(door.open) <= CONNECTIONS_MAX
    table = door.table
    assert set(table._all) == set(door.open)
    assert table.unproven + len(table._proven) == len(door.open)
    for fake in list(door.open):
        fake.close_now()
        table.remove(fake)
    assert (table._afar, table._of_network, dict(table._of_caller), len(table)) == (0, {}, {}, 0)


# -- with sockets


def secured(town: Any) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    plain = socket.create_connection(("127.0.0.1", town.host.enrolment.https_port), 10)
    return context.wrap_socket(plain)


def ask(connection: socket.socket, token: str = "") -> bytes:
    path = "/api/cluster" if token else "/healthz"
    shown = f"Authorization: Bearer {token}\r\n" if token else ""
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{shown}\r\n".encode())
    return connection.recv(65536).partition(b"\r\n")[0]


def test_https_connections_without_a_token_keep_nobody_out(town: Any) -> None:
    def flood() -> None:
        with ExitStack() as stack:
            first = stack.enter_context(secured(town))
            assert ask(first, town.token) == b"HTTP/1.1 200 OK"
            for _ in range(2 * UNPROVEN_OF_NETWORK_MAX):
                stranger = stack.enter_context(secured(town))
                assert ask(stranger) == b"HTTP/1.1 200 OK"
            assert ask(first, town.token) == b"HTTP/1.1 200 OK", "who showed a token keeps its place"
            last = stack.enter_context(secured(town))
            assert ask(last, town.token) == b"HTTP/1.1 200 OK", "and another one gets in"

    async def in_thread() -> None:
        await town.client.loop.run_in_executor(None, flood)

    town.run(in_thread())
    assert town.gateway._app.connections.closed_total >= UNPROVEN_OF_NETWORK_MAX


def test_a_connection_without_a_token_is_closed_after_its_time(town: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "UNPROVEN_S", 0.3)
    table = town.gateway._app.connections
    with socket.create_connection(("127.0.0.1", int(town.gateway.url.rpartition(":")[2])), 10) as stranger:
        stranger.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        town.until(lambda: len(table) == 1)
        town.until(lambda: len(table) == 0)


def test_the_plain_door_takes_a_bounded_number_without_a_token(town: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "UNPROVEN_MAX", 5)
    table = town.gateway._app.connections
    where = ("127.0.0.1", int(town.gateway.url.rpartition(":")[2]))
    with ExitStack() as stack:
        for number in range(20):
            stack.enter_context(socket.create_connection(where, 10))
            town.until(lambda number=number: table.closed_total + len(table) == number + 1)
        assert table.unproven == 5
        assert town.http("GET", "/api/cluster").status == 200
