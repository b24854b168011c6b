"""A member's own key in the wrong hands: whatever comes over its links, the other host goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, get_args
from zlib import crc32

import msgpack

from actorgrid.actors.consensus.raft_links import TARGET
from actorgrid.actors.links.actor import SHARED_STATE
from actorgrid.actors.links.pieces import pack
from actorgrid.actors.raft.codec import encode_message
from actorgrid.actors.raft.messages import ConfState, Entry, Message, MessageKind, SnapshotChunk
from actorgrid.actors.raft.storage.store import Store
from actorgrid.actors.security.peer_identity import peer_identity
from actorgrid.configs.paths import HostPaths
from actorgrid.errors import ActorGridError
from actorgrid.supervisors.inline import InlineNode
from actorgrid.transports.peer.calls import PendingAnswer
from actorgrid.transports.peer.net import PeerNet
from tests.hostile.mutations import ODD, ROUNDS, mutated
from tests.links.test_hostile_services import CALLS
from tests.processes import until
from tests.replication.test_hostile_packets import packet as odd_packet
from tests.system.cluster_host import ADDRESS, ClusterHost

CALLS_PORT, RAFT_PORT = 1, 2
MESSAGES, BATCHES, BATCH = 2_000, 20, 20
OWN_TO_ASK = {"restart", "end_all_work", "leave_step"}
"""What a member may ask for, and what would be done."""


def refuse(*_: Any) -> Any:
    raise AssertionError("nobody asks this end for anything")


def own_net(loop: InlineNode, member: ClusterHost, victim: ClusterHost, port: int) -> PeerNet:
    """A net that shows the member's certificate at one of the ports of *victim*, over real sockets and TLS."""
    return PeerNet(
        loop,
        peer_identity(HostPaths(member.data_dir).security_dir),
        None,
        resolve=lambda _host_id: [(ADDRESS, victim.base_port + port)],
        admit=lambda _host_id, _fingerprint: None,
        on_call=lambda _call: None,  # is it there, does it reach another: hosts ask, and get no answer
        on_cast=lambda *_: None,
        on_stream=refuse,
    )


def odd_messages(dice: Random, sender: int, to: int) -> bytes:
    """A Raft message of any kind in any term; half of them with something wrong inside."""
    kind = dice.choice(get_args(MessageKind))
    number = [dice.choice((0, 1, 2, 5, 40, 2**31)) for _ in range(5)]
    entries = (Entry(number[0], number[1], "command", dice.randbytes(3)),) if dice.random() < 0.3 else ()
    data = encode_message(
        Message(
            kind,
            to,
            sender,
            number[2],
            index=number[3],
            log_term=number[1],
            commit=number[4],
            entries=entries,
            force=dice.random() < 0.3,
            reject=dice.random() < 0.3,
        )
    )
    if dice.random() < 0.5:
        return data
    if dice.random() < 0.2:
        return dice.randbytes(dice.randrange(60))
    odd = tuple(each for each in ODD if packs(each))
    return bytes(msgpack.packb(mutated(msgpack.unpackb(data, strict_map_key=False), dice, odd)))


def packs(value: Any) -> bool:
    try:
        pack({"": value})
    except (ValueError, OverflowError, TypeError):
        return False
    return True


def unsent(net: PeerNet, host_id: str) -> int:
    """Bytes that have not left for a host; -1 without a link to it."""
    known = net.stats()["hosts"].get(host_id, {"links": 0})
    return int(known["unsent_bytes"]) if known["links"] else -1


def test_whatever_a_member_sends_with_its_own_certificate_stops_no_other_host(
    make_host: Callable[..., ClusterHost],
) -> None:
    first, second = make_host("a", 1).found(), make_host("b", 1)
    second.join(first, first.token()["token"])
    ids = until(lambda: (hosts := first.hosts()).keys() == {1, 2} and hosts, "two hosts")
    victim, sender = (str(ids[node]["node_id"]) for node in (1, 2))
    second.stop()
    servers = {process.pid for process in first.processes()}

    loop, dice = InlineNode(real_time=True), Random(1)
    raft, calls = (own_net(loop, second, first, port) for port in (RAFT_PORT, CALLS_PORT))
    outcomes: Counter[str] = Counter()
    odd = tuple(each for each in ODD if packs(each))
    asked = [name for name in CALLS if name not in OWN_TO_ASK]
    try:
        raft.cast(victim, TARGET, odd_messages(dice, 2, 1))
        loop.run_until(lambda: unsent(raft, victim) == 0, 30.0, "a link for Raft")
        for number in range(MESSAGES * ROUNDS):
            raft.cast(victim, TARGET, odd_messages(dice, 2, 1))
            if number % 50 == 0:
                loop.run_until(lambda: unsent(raft, victim) == 0, 30.0, "what was said is on its way")
        assert raft.stats()["hosts"][victim]["casts_dropped"] == 0
        for number in range(MESSAGES * ROUNDS):
            calls.cast(victim, SHARED_STATE, odd_packet(dice, 1 + number, (sender, 1)))
            if number % 50 == 0:
                loop.run_until(lambda: unsent(calls, victim) == 0, 30.0, "what was said is on its way")
        for _ in range(BATCHES * ROUNDS):
            answers: list[PendingAnswer] = []
            for _ in range(BATCH):
                service = dice.choice(asked)
                body = pack(mutated(CALLS[service], dice, odd)) if dice.random() < 0.9 else dice.randbytes(20)
                answers.append(calls.call(victim, service, body, 2.0))
            loop.run_until(lambda waiting=answers: all(each.done for each in waiting), 30.0)  # type: ignore[misc]
            for each in answers:
                try:
                    each.result()
                    outcomes["answered"] += 1
                except ActorGridError as error:
                    outcomes[error.code] += 1
    finally:
        raft.close()
        calls.close()
    assert outcomes["BadRequest"] > BATCHES, outcomes
    assert not outcomes.keys() & {"PeerGone", "HostUnreachable", "ActorDown"}, outcomes
    assert {process.pid for process in first.processes()} >= servers, "a server of the host died"
    refused = first.cli_json("inspect", "distributed_state")["inspect"]["status"]["refused"]
    assert sum(refused.values()) > MESSAGES // 4, refused
    assert first.client().state.increment("still/counts") == 1
    assert first.ended("--", "true")["state"] == "succeeded"


def test_a_snapshot_that_is_no_state_is_refused_told_and_survived_by_a_running_host(
    make_host: Callable[..., ClusterHost],
) -> None:
    """A voter's own key: it raises the term, leads the victim, and sends what is no state."""
    first, victim, third = make_host("a", 1).found(), make_host("b", 1), make_host("c", 1)
    token = first.token("--uses", "2")["token"]
    victim.join(first, token)
    third.join(first, token)
    until(lambda: sorted(first.roles()) == [1, 2, 3] and "learner" not in first.roles().values(), "three voters", 60.0)
    known = first.hosts()
    nodes = {str(host["node_id"]): node for node, host in known.items()}
    here = next(id for id in nodes if nodes[id] == 2)
    third.stop()
    servers = {process.pid for process in victim.processes()}

    data = b"no state at all"
    chunk = SnapshotChunk(10**6, 1, ConfState(voters=(1, 2, 3)), 0, len(data), crc32(data), data)
    loop = InlineNode(real_time=True)
    raft = own_net(loop, third, victim, RAFT_PORT)
    try:
        for term in (1_000, 1_001):  # one that it looks at in each term
            for _ in range(3):
                raft.cast(here, TARGET, encode_message(Message("snapshot", 2, 3, term, chunk=chunk)))
            loop.run_until(lambda: unsent(raft, here) == 0, 30.0, "what was said is on its way")
    finally:
        raft.close()

    def refused() -> Any:
        found = {each["name"]: each for each in victim.cli_json("status")["findings"]}
        return found.get("snapshot_refused")

    told = until(refused, "the finding", 30.0)
    assert "cannot be read" in told["found"] and set(told["hosts"]) >= {here}, told
    assert {process.pid for process in victim.processes()} >= servers, "a server of the host died"
    assert victim.ended("--", "true")["state"] == "succeeded"
    until(lambda: (told := refused()) and told["level"] == "note", "an honest leader", 30.0)
    victim.stop()
    victim.start()
    assert victim.ended("--", "true")["state"] == "succeeded"
    assert refused() is None


def test_a_host_that_has_such_a_snapshot_on_its_disk_ends_by_name(make_host: Callable[..., ClusterHost]) -> None:
    """As the version before has stored it; at every start, and without a start in between."""
    host = make_host("a", 1).found()
    host.stop()
    store = Store(HostPaths(host.data_dir).ledger_dir / "state.db")
    try:
        store.save_snapshot(store.snapshots()[0].index, 1, b"no state at all", "", received=True)
    finally:
        store.close()
    for _ in range(2):
        error = host.refused_up()
        assert error["code"] == "LogCorrupted" and "holds no state" in error["message"], error
        assert "--join" in error["hint"], error
