"""Who votes, signed for a host that joins: by whom, for whom, in answer to what; and nothing else is believed."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st

from actorgrid.actors.security.authority import Authority
from actorgrid.actors.security.host_material import HostMaterial
from actorgrid.actors.security.join_messages import JoinWelcome
from actorgrid.actors.security.joiner import Joined
from actorgrid.actors.security.keys import new_private_key
from actorgrid.actors.security.trust_bundle import TrustBundle
from actorgrid.actors.security.voters_statement import (
    STATEMENT_BYTES_MAX,
    VOTERS_MAX,
    StatedVoters,
    VoterAddress,
    check_voters,
    sign_voters,
)
from actorgrid.errors import ActorGridError, BadRequest, MalformedMessage, StatementRefused, TrustError, WrongCluster
from tests.security.join_rig import Member, failure, join, new_joiner
from tests.security.rig import CLUSTER, NOW_S, OTHER_CLUSTER, Cluster, new_authority

CHALLENGE = bytes(range(32))
KEY = "ab" * 32
VOTERS = tuple(
    VoterAddress(f"host-{n}", n, f"10.0.0.{n}:7402", f"10.0.0.{n}:7401", f"10.0.0.{n}:7400", f"{n:064x}")
    for n in (1, 2, 3)
)
STATED = StatedVoters(CLUSTER, "host-b", 4, KEY, CHALLENGE, 1, 9, 2, NOW_S, VOTERS)
SHARED = Cluster()
STATEMENT = sign_voters(SHARED.authority, STATED)


def check(statement: bytes, bundle: TrustBundle = SHARED.bundle, host_id: str = "host-b") -> StatedVoters:
    return check_voters(statement, bundle, host_id, KEY, [CHALLENGE])


def by_own_key(signer: HostMaterial, statement: bytes = STATEMENT) -> bytes:
    """The same, signed with the key of a host's certificate: all that one that learns has."""
    impostor = object.__new__(Authority)
    object.__setattr__(impostor, "key", signer.key)
    object.__setattr__(impostor, "certificate", SHARED.authority.certificate)
    object.__setattr__(impostor, "cluster_id", CLUSTER)
    return sign_voters(impostor, check(statement))


def test_a_statement_says_to_its_host_who_votes() -> None:
    assert check(STATEMENT) == STATED
    assert check_voters(STATEMENT, SHARED.bundle, "host-b", KEY, [bytes(32), CHALLENGE]) == STATED
    assert len(STATEMENT) < 1_000


def test_one_that_the_authority_did_not_sign_is_refused() -> None:
    for forged in (by_own_key(SHARED.host("host-c")), sign_voters(new_authority(), STATED)):
        with pytest.raises(StatementRefused, match="not stated by the cluster's authority"):
            check(forged)


def test_one_for_another_host_key_question_or_cluster_is_refused() -> None:
    with pytest.raises(StatementRefused, match="another host"):
        check(STATEMENT, host_id="host-c")
    with pytest.raises(StatementRefused, match="another host"):
        check_voters(STATEMENT, SHARED.bundle, "host-b", "cd" * 32, [CHALLENGE])
    for asked in ([], [bytes(32)]):
        with pytest.raises(StatementRefused, match="another question"):
            check_voters(STATEMENT, SHARED.bundle, "host-b", KEY, asked)
    with pytest.raises(WrongCluster):
        check(sign_voters(SHARED.authority, replace(STATED, cluster_id=OTHER_CLUSTER)))
    with pytest.raises(StatementRefused, match="not stated by"):
        check(STATEMENT, Cluster(OTHER_CLUSTER).bundle)


def test_while_the_authority_is_rotated_both_generations_state_it_and_a_retired_one_does_not() -> None:
    cluster = Cluster()
    old, before = cluster.authority, cluster.bundle
    waiting = cluster.introduce()
    for authority in (old, waiting):  # whoever has switched already, and whoever has not
        assert check(sign_voters(authority, STATED), cluster.bundle) == STATED
    with pytest.raises(StatementRefused, match="not trusted here"):
        check(sign_voters(waiting, STATED), before)
    cluster.bundle = cluster.bundle.switch().retire(1)
    assert check(sign_voters(waiting, STATED), cluster.bundle) == STATED
    with pytest.raises(StatementRefused, match="not trusted here") as refused:
        check(sign_voters(old, STATED), cluster.bundle)
    assert "token" in refused.value.hint


def test_the_later_of_two_is_that_of_the_later_entry_in_the_later_epoch() -> None:
    assert replace(STATED, index=10).position > STATED.position
    assert replace(STATED, epoch=2, index=1).position > STATED.position


@pytest.mark.parametrize(
    "change",
    [
        {"voters": ()},
        {"voters": tuple(replace(VOTERS[0], node=n, host_id=f"h{n}") for n in range(1, VOTERS_MAX + 2))},
        {"voters": (VOTERS[0], replace(VOTERS[1], node=1))},
        {"voters": (VOTERS[0], replace(VOTERS[1], host_id="host-1"))},
        {"voters": (replace(VOTERS[0], node=0),)},
        {"voters": (replace(VOTERS[0], fingerprint=""),)},
        {"voters": (replace(VOTERS[0], raft="x" * 201),)},
        {"voters": (replace(VOTERS[0], raft="a\nb"),)},
        {"challenge": b"short"},
        {"index": -1},
        {"node": 0},
        {"at": float("nan")},
        {"host_id": "Not An Id"},
        {"fingerprint": "AB" * 32},
    ],
)
def test_what_could_not_be_read_back_is_not_signed(change: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        sign_voters(SHARED.authority, replace(STATED, **change))


# -- what comes from a socket


def refused_by_name(statement: bytes) -> None:
    try:
        assert check(statement) == STATED
    except (TrustError, MalformedMessage) as error:
        assert error.message


@given(st.integers(0, len(STATEMENT) - 1), st.integers(1, 255))
def test_with_any_byte_changed_it_is_refused_by_name(at: int, flip: int) -> None:
    changed = bytearray(STATEMENT)
    changed[at] ^= flip
    refused_by_name(bytes(changed))


@given(st.integers(0, len(STATEMENT) - 1))
def test_cut_anywhere_it_is_refused_by_name(length: int) -> None:
    with pytest.raises(MalformedMessage):
        check(STATEMENT[:length])


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=6)
    | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=7) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=50)
@given(st.binary(max_size=300) | anything.map(msgpack.packb))
def test_what_is_no_statement_is_refused_by_name(data: bytes) -> None:
    with pytest.raises((MalformedMessage, StatementRefused)):
        check(data)


@settings(max_examples=40)
@given(st.sampled_from(["authority", "body", "signature"]), anything)
def test_with_any_part_replaced_it_is_refused_by_name(name: str, value: Any) -> None:
    refused_by_name(msgpack.packb({**msgpack.unpackb(STATEMENT), name: value}))


@settings(max_examples=25)  # each is signed and checked
@given(st.data())
def test_a_voter_that_signs_nonsense_is_refused_by_name(data: st.DataObject) -> None:
    fields = msgpack.unpackb(msgpack.unpackb(STATEMENT)["body"])
    name = data.draw(st.sampled_from([*sorted(fields), "more"]))
    value = data.draw(anything | st.lists(st.lists(anything, min_size=6, max_size=6), max_size=2))
    body = msgpack.packb({**fields, name: value})
    label = b"actorgrid voters statement 1\0"
    signature = SHARED.authority.key.sign(label + body, ec.ECDSA(hashes.SHA256()))
    statement = msgpack.packb({"authority": 1, "body": body, "signature": signature})
    try:
        stated = check(statement)
    except (TrustError, MalformedMessage):
        return
    assert stated.voters


def test_one_that_is_too_large_is_not_looked_at() -> None:
    with pytest.raises(MalformedMessage, match="too large"):
        check(bytes(STATEMENT_BYTES_MAX + 1))


# -- in a join


def test_a_member_that_learns_cannot_tell_a_host_that_comes_again_that_it_votes() -> None:
    """The answer to the first visit was lost, and the host comes again, with its key, to one that has read it."""
    cluster = Cluster()
    honest, token, key = Member(cluster), cluster.token(), new_private_key()
    first = join(honest, new_joiner(token, key=key))
    assert isinstance(first, Joined)
    learner = Member(cluster)
    itself = VoterAddress("host-a", 2, "10.0.0.9:7402", "10.0.0.9:7401", "", learner.material.identity.fingerprint)
    false = replace(first.stated, voters=(itself,))
    impostor = object.__new__(Authority)
    for name, value in (("key", learner.material.key), ("certificate", cluster.authority.certificate)):
        object.__setattr__(impostor, name, value)
    statements = {
        "the one it was sent then": first.welcome.statement,
        "its own word": sign_voters(impostor, false),
        "none": b"",
        "nonsense": os.urandom(40),
    }
    for what, statement in statements.items():

        def lie(_: JoinWelcome | ActorGridError, statement: bytes = statement) -> JoinWelcome:
            return replace(first.welcome, statement=statement)

        error = failure(join(learner, new_joiner(token, key=key), answer=lie))
        assert isinstance(error, StatementRefused | MalformedMessage), what
    again = join(honest, new_joiner(token, key=key))
    assert isinstance(again, Joined) and again.stated.voters == first.stated.voters


def test_a_member_cannot_give_the_host_another_number_than_the_signed_one() -> None:
    cluster = Cluster()

    def lie(given: JoinWelcome | ActorGridError) -> JoinWelcome:
        assert isinstance(given, JoinWelcome)
        return replace(given, node=1)

    error = failure(join(Member(cluster), new_joiner(cluster.token()), answer=lie))
    assert isinstance(error, StatementRefused) and "another number" in str(error)
