"""A join from both sides: through real TLS, with whoever may stand in between."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.actors.security.certificate_requests import make_request
from actorgrid.actors.security.certificates import digest
from actorgrid.actors.security.host_material import HostMaterial
from actorgrid.actors.security.join_door import VISITS_MAX, VISITS_PER_SOURCE_MAX, JoinDoor, JoinVisit, Redeem, examine
from actorgrid.actors.security.join_messages import (
    Capabilities,
    Hello,
    Refused,
    Voter,
    Welcome,
    encode,
    encode_claim,
    read_capabilities,
)
from actorgrid.actors.security.join_tokens import JoinClaim, JoinToken, redeem, revoke_token
from actorgrid.actors.security.joining import Close, Joined, Joiner, JoinFailed, Send
from actorgrid.actors.security.keys import new_private_key
from actorgrid.actors.security.tls_contexts import door_context, joiner_context, ssl_contexts
from actorgrid.actors.security.wrong_tokens import WrongTokens
from actorgrid.errors import (
    ActorGridError,
    BadRequest,
    CallTimeout,
    CertificateRefused,
    JoinTokenExpired,
    JoinTokenRevoked,
    JoinTokenUsed,
    MalformedMessage,
    NotLeader,
    Overloaded,
    PeerGone,
    PeerRefused,
    TrustError,
    UnknownJoinToken,
    WrongCluster,
    error_from_dict,
)
from actorgrid.transports.frames import FrameDecoder, encode_frame
from tests.security.rig import CLUSTER, DAY_S, NOW_S, OTHER_CLUSTER, Cluster, Pair

CAPABILITIES = Capabilities(
    cpu_milli=64_000,
    memory_mib=512 * 1024,
    addresses=("10.0.0.2", "gpu-2.example"),
    listens={"raft": "10.0.0.2:7402", "calls": "10.0.0.2:7401", "http": "10.0.0.2:7400"},
    software="0.6.0",
    rack="r1",
    devices=({"uuid": "GPU-1", "index": 0, "memory_mib": 81_920},),
    measured={"network_mib_per_s": 11_000.0},
)

ENCODING = Encoding.DER


@dataclass
class Member:
    """A member of the cluster that answers joins, with a ledger of one dictionary."""

    cluster: Cluster
    material: HostMaterial = field(init=False)
    door: JoinDoor = field(init=False)
    taken: dict[str, str] = field(default_factory=dict)
    wall_s: float = NOW_S
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.material = self.cluster.host("host-a", ("10.0.0.1",))
        self.door = JoinDoor(self.cluster.tokens.get, lambda: self.taken, "0.6.0")

    def visit(self, source: str = "10.0.0.2") -> JoinVisit:
        return self.door.open(source, self.cluster.bundle, self.material.certificate, os.urandom(32), self.now_s)

    def redeem(self, asked: Redeem) -> Welcome | ActorGridError:
        """What the ledger and the authority make of it."""
        claim, tokens = asked.claim, self.cluster.tokens
        try:
            tokens[claim.token_id] = redeem(
                tokens[claim.token_id], self.cluster.cluster_id, claim.host_id, asked.request.fingerprint, self.wall_s
            )
        except TrustError as error:
            return error
        certificate = self.cluster.authority.issue(asked.request, self.wall_s, x509.random_serial_number())
        voters = (Voter("host-a", 1, "10.0.0.1:7402", "10.0.0.1:7401", "10.0.0.1:7400"),)
        return Welcome(self.cluster.cluster_id, claim.host_id, 2, certificate, self.cluster.bundle, voters)


def new_joiner(token: JoinToken, host_id: str = "host-b", key: ec.EllipticCurvePrivateKey | None = None) -> Joiner:
    return Joiner(token, host_id, key or new_private_key(), CAPABILITIES, 0.0)


Change = Callable[[Any], Any]


def join(
    member: Member,
    joiner: Joiner,
    *,
    shows: HostMaterial | None = None,
    answer: Change = lambda given: given,
    source: str = "10.0.0.2",
) -> Joined | JoinFailed:
    """A whole join through TLS. *shows*: whose certificate the server has; *answer* changes the answer to Redeem."""
    pair = Pair(door_context(shows or member.material), joiner_context()).shake()
    visit = member.visit(source)
    assert joiner.connected(pair.client.peer) == []
    waiting: list[Any] = list(visit.begin(member.now_s))
    for _ in range(10):
        if not waiting:
            break
        step = waiting.pop(0)
        if isinstance(step, Redeem):
            given = answer(member.redeem(step))
            waiting += visit.welcome(given) if isinstance(given, Welcome) else visit.refuse(given)
        elif isinstance(step, Send):
            for out in joiner.received(pair.send(pair.server, step.data), member.wall_s):
                if isinstance(out, Joined | JoinFailed):
                    visit.closed()
                    return out
                if isinstance(out, Send):
                    waiting += visit.received(pair.send(pair.client, out.data), member.now_s, member.wall_s)
    raise AssertionError("the join came to no end")


def failure(outcome: Joined | JoinFailed) -> ActorGridError:
    assert isinstance(outcome, JoinFailed), outcome
    return outcome.error


def test_a_new_host_joins_and_speaks_with_the_others_as_one_of_them() -> None:
    cluster = Cluster()
    member, key = Member(cluster), new_private_key()
    outcome = join(member, new_joiner(cluster.token(), key=key))
    assert isinstance(outcome, Joined)
    welcome = outcome.welcome
    assert (welcome.host_id, welcome.node, welcome.voters[0].raft) == ("host-b", 2, "10.0.0.1:7402")
    new = HostMaterial(key, welcome.certificate, welcome.bundle)
    assert new.check(NOW_S).host_id == "host-b"
    Pair(ssl_contexts(member.material).server, ssl_contexts(new).client).shake()
    Pair(ssl_contexts(new).server, ssl_contexts(member.material).client).shake()
    assert (member.door.welcomed, member.door.visits, sum(member.door.refused.values())) == (1, 0, 0)


def test_what_the_host_has_arrives_as_it_was_told() -> None:
    cluster = Cluster()
    member, seen = Member(cluster), []
    examined = member.redeem

    def keep(asked: Redeem) -> Welcome | ActorGridError:
        seen.append(asked)
        return examined(asked)

    member.redeem = keep  # type: ignore[method-assign]
    join(member, new_joiner(cluster.token()))
    assert seen[0].capabilities == CAPABILITIES
    assert seen[0].request.addresses == ("10.0.0.2", "gpu-2.example")


def test_the_secret_of_the_token_never_crosses_and_nothing_does_before_the_member_is_proven() -> None:
    cluster = Cluster()
    token = cluster.token()
    visit, joiner = Member(cluster).visit(), new_joiner(token)
    assert joiner.connected(b"not the certificate of anyone") == []
    (hello,) = visit.begin(0.0)
    assert isinstance(hello, Send)
    outcome = joiner.received(hello.data, NOW_S)
    assert [type(step) for step in outcome] == [JoinFailed, Close]

    member = Member(cluster)
    visit, joiner = member.visit(), new_joiner(token)
    joiner.connected(member.material.certificate.public_bytes(ENCODING))
    (hello,) = visit.begin(0.0)
    (claim,) = joiner.received(hello.data, NOW_S)  # type: ignore[union-attr]
    assert isinstance(claim, Send)
    assert token.secret not in claim.data and token.text.split(".")[4].encode() not in claim.data


# -- who stands in between


def test_a_man_in_the_middle_with_another_authority_hears_nothing() -> None:
    token = Cluster().token()
    impostor = Member(Cluster())
    error = failure(join(impostor, new_joiner(token)))
    assert isinstance(error, CertificateRefused) and "not the one we know" in str(error)
    assert impostor.door.refused == {}


def test_a_man_in_the_middle_who_shows_the_real_authority_and_a_certificate_of_his_own_hears_nothing() -> None:
    cluster = Cluster()
    own = Cluster().host("host-a")
    error = failure(join(Member(cluster), new_joiner(cluster.token()), shows=own))
    assert isinstance(error, CertificateRefused) and "no authority of this cluster" in str(error)


def test_a_man_in_the_middle_of_another_cluster_is_named() -> None:
    other = Cluster(OTHER_CLUSTER)
    error = failure(join(Member(other), new_joiner(Cluster().token())))
    assert isinstance(error, WrongCluster)


def test_one_member_cannot_pass_a_claim_on_to_another() -> None:
    cluster = Cluster()
    false_one, true_one = Member(cluster), Member(cluster)
    joiner = new_joiner(cluster.token())
    joiner.connected(false_one.material.certificate.public_bytes(ENCODING))
    visit = true_one.visit()
    (hello,) = visit.begin(0.0)
    (claim,) = joiner.received(hello.data, NOW_S)  # type: ignore[union-attr]
    refused, _ = visit.received(claim.data, 0.0, NOW_S)  # type: ignore[union-attr]
    assert true_one.door.refused == {"UnknownJoinToken": 1}
    assert isinstance(refused, Send)


def test_an_old_claim_is_of_no_use_on_another_visit() -> None:
    cluster = Cluster()
    member = Member(cluster)
    joiner = new_joiner(cluster.token())
    joiner.connected(member.material.certificate.public_bytes(ENCODING))
    first = member.visit()
    (hello,) = first.begin(0.0)
    (claim,) = joiner.received(hello.data, NOW_S)  # type: ignore[union-attr]
    again = member.visit()
    again.begin(0.0)
    again.received(claim.data, 0.0, NOW_S)  # type: ignore[union-attr]
    assert member.door.refused == {"UnknownJoinToken": 1}


def test_advice_of_one_who_has_proven_nothing_is_not_shown() -> None:
    joiner = new_joiner(Cluster().token())
    joiner.connected(b"")
    advice = encode(Refused(JoinTokenUsed("used", hint="run this command as root")))
    error = failure(joiner.received(advice, NOW_S)[0])  # type: ignore[arg-type]
    assert isinstance(error, PeerRefused) and "root" not in str(error)


# -- tokens and clocks


def test_a_used_token_is_refused_to_another_host_and_not_to_the_same() -> None:
    cluster = Cluster()
    member, token, key = Member(cluster), cluster.token(), new_private_key()
    assert isinstance(join(member, new_joiner(token, key=key)), Joined)
    assert isinstance(failure(join(member, new_joiner(token, "host-c"))), JoinTokenUsed)
    assert isinstance(failure(join(member, new_joiner(token))), JoinTokenUsed)
    assert isinstance(join(member, new_joiner(token, key=key)), Joined)
    assert member.door.refused == {"JoinTokenUsed": 2}


def test_an_expired_a_revoked_and_an_unknown_token_are_refused_by_name() -> None:
    cluster = Cluster()
    member = Member(cluster)
    old = cluster.token(at=NOW_S - 7200)
    assert isinstance(failure(join(member, new_joiner(old))), JoinTokenExpired)
    taken_back = cluster.token()
    cluster.tokens[taken_back.token_id] = revoke_token(cluster.tokens[taken_back.token_id], NOW_S)
    assert isinstance(failure(join(member, new_joiner(taken_back))), JoinTokenRevoked)
    unknown = cluster.token()
    del cluster.tokens[unknown.token_id]
    assert isinstance(failure(join(member, new_joiner(unknown))), UnknownJoinToken)
    guessed = replace(cluster.token(), secret=bytes(16))
    assert isinstance(failure(join(member, new_joiner(guessed))), UnknownJoinToken)


def test_an_address_that_guesses_is_soon_not_looked_at() -> None:
    cluster = Cluster()
    member = Member(cluster)
    guessed = replace(cluster.token(), secret=bytes(16))
    for _ in range(5):
        assert isinstance(failure(join(member, new_joiner(guessed))), UnknownJoinToken)
    error = failure(join(member, new_joiner(cluster.token())))
    assert isinstance(error, PeerRefused) and error.found == "Overloaded"
    assert isinstance(join(member, new_joiner(cluster.token()), source="10.0.0.3"), Joined)


def test_a_member_whose_certificate_ran_out_is_not_believed_and_a_slow_clock_is_named() -> None:
    cluster = Cluster(now_s=NOW_S - 100 * DAY_S)
    member = Member(cluster)
    error = failure(join(member, new_joiner(cluster.token())))
    assert isinstance(error, CertificateRefused) and "expired" in str(error)
    member = Member(Cluster())
    member.wall_s = 0.0
    error = failure(join(member, new_joiner(member.cluster.token())))
    assert isinstance(error, CertificateRefused) and "set the clock" in error.hint


def test_a_token_of_before_a_rotation_is_good_until_the_old_authority_is_retired() -> None:
    cluster = Cluster()
    token, late = cluster.token(), cluster.token()
    cluster.rotate()
    assert isinstance(join(Member(cluster), new_joiner(token)), Joined)
    cluster.bundle = cluster.bundle.retire(1)
    error = failure(join(Member(cluster), new_joiner(late)))
    assert isinstance(error, CertificateRefused) and "new join token" in error.hint


# -- what the ledger says


def test_what_the_ledger_refuses_is_told() -> None:
    cluster = Cluster()
    member = Member(cluster)
    error = failure(join(member, new_joiner(cluster.token()), answer=lambda _: NotLeader("no leader", hint="wait")))
    assert isinstance(error, NotLeader) and error.hint == "wait"
    assert member.door.refused == {"NotLeader": 1}


@pytest.mark.parametrize(
    "change",
    [
        lambda w: replace(w, host_id="host-c"),
        lambda w: replace(w, cluster_id=OTHER_CLUSTER),
        lambda w: replace(w, certificate=Cluster().certificate("host-b")),
        lambda w: replace(w, bundle=Cluster().bundle),
        lambda w: replace(w, bundle=Cluster(OTHER_CLUSTER).bundle),
    ],
    ids=["host", "cluster", "certificate", "bundle", "bundle_of_another"],
)
def test_a_welcome_that_does_not_fit_is_not_entered(change: Change) -> None:
    cluster = Cluster()
    assert isinstance(failure(join(Member(cluster), new_joiner(cluster.token()), answer=change)), TrustError)


def test_a_certificate_for_another_key_is_not_entered() -> None:
    cluster = Cluster()
    error = failure(
        join(
            Member(cluster),
            new_joiner(cluster.token()),
            answer=lambda w: replace(w, certificate=cluster.certificate("host-b")),
        )
    )
    assert isinstance(error, CertificateRefused) and "not ours" in str(error)


def test_an_address_that_another_host_has_is_refused() -> None:
    cluster = Cluster()
    member = Member(cluster, taken={"10.0.0.2": "host-z"})
    error = failure(join(member, new_joiner(cluster.token())))
    assert isinstance(error, CertificateRefused) and "host-z" in str(error)
    assert cluster.tokens and all(record["used_by"] == [] for record in cluster.tokens.values())


def test_a_voter_that_decides_for_another_member_looks_at_the_claim_itself() -> None:
    cluster = Cluster()
    token = cluster.token()
    record = cluster.tokens[token.token_id]
    request = make_request(new_private_key(), CLUSTER, "host-b", CAPABILITIES.addresses)
    claim = JoinClaim(CLUSTER, token.token_id, "host-b", bytes(32), "00" * 32, request, CAPABILITIES.pack())
    signed = claim.signed(token)
    assert examine(signed, record, CLUSTER, {})[0].host_id == "host-b"
    swapped = make_request(new_private_key(), CLUSTER, "host-b", CAPABILITIES.addresses)
    with pytest.raises(UnknownJoinToken):
        examine(replace(signed, request=swapped), record, CLUSTER, {})
    with pytest.raises(WrongCluster):
        examine(signed, record, OTHER_CLUSTER, {})


# -- time, order, bounds


def claim_for(member: Member, visit: JoinVisit) -> bytes:
    joiner = new_joiner(member.cluster.token())
    joiner.connected(member.material.certificate.public_bytes(ENCODING))
    (hello,) = visit.begin(member.now_s)
    (claim,) = joiner.received(hello.data, NOW_S)  # type: ignore[union-attr]
    assert isinstance(claim, Send)
    return claim.data


def refusal(steps: list[Any]) -> ActorGridError:
    send, close = steps
    assert isinstance(close, Close)
    (frame,) = FrameDecoder().feed(send.data)
    assert frame[0] == "refused"
    return error_from_dict(frame[1])


def test_a_visit_waits_ten_seconds_for_the_claim_and_thirty_for_the_ledger() -> None:
    member = Member(Cluster())
    silent = member.visit()
    silent.begin(0.0)
    assert silent.tick(9.9) == []
    assert isinstance(refusal(silent.tick(10.0)), CallTimeout)
    assert silent.tick(99.0) == [] and silent.received(b"x", 99.0, NOW_S) == []

    visit = member.visit()
    claim = claim_for(member, visit)
    (asked,) = visit.received(claim, 9.0, NOW_S)
    assert isinstance(asked, Redeem) and visit.tick(38.9) == []
    assert isinstance(refusal(visit.tick(39.0)), CallTimeout)
    answer = member.redeem(asked)
    assert isinstance(answer, Welcome) and visit.welcome(answer) == [] and visit.refuse(NotLeader("late")) == []
    assert member.door.visits == 0


def test_a_joiner_gives_up_and_says_where() -> None:
    joiner = new_joiner(Cluster().token())
    assert joiner.tick(59.0) == []
    error = failure(joiner.tick(60.0)[0])  # type: ignore[arg-type]
    assert isinstance(error, CallTimeout) and "before it took the claim" in error.found
    assert joiner.tick(61.0) == joiner.closed() == joiner.received(b"x", NOW_S) == []


def test_a_connection_that_closes_early_is_named() -> None:
    joiner = new_joiner(Cluster().token())
    assert isinstance(failure(joiner.closed()[0]), PeerGone)  # type: ignore[arg-type]


def test_only_so_many_visits_at_once() -> None:
    member = Member(Cluster())
    visits = [member.visit(f"10.0.0.{number // VISITS_PER_SOURCE_MAX}") for number in range(VISITS_MAX)]
    for source in ("10.0.0.0", "10.0.0.200"):
        with pytest.raises(Overloaded):
            member.visit(source)
    visits[0].closed()
    visits[0].closed()
    assert member.door.visits == VISITS_MAX - 1
    with pytest.raises(Overloaded):
        member.visit("10.0.0.1")
    member.visit("10.0.0.200")
    assert member.door.refused == {"Overloaded": 3}


def test_a_visitor_that_never_ends_its_handshake_is_left() -> None:
    member = Member(Cluster())
    visit = member.visit()
    assert visit.tick(9.9) == []
    assert visit.tick(10.0) == [Close()]
    assert (member.door.visits, dict(member.door.sources)) == (0, {})


def test_a_second_claim_is_refused_and_redeems_nothing() -> None:
    member = Member(Cluster())
    visit = member.visit()
    claim = claim_for(member, visit)
    steps = visit.received(claim + claim, 0.0, NOW_S)
    assert isinstance(refusal(steps), MalformedMessage)


def test_bytes_may_come_one_by_one() -> None:
    member = Member(Cluster())
    visit = member.visit()
    claim = claim_for(member, visit)
    steps = [step for at in range(len(claim)) for step in visit.received(claim[at : at + 1], 0.0, NOW_S)]
    assert [type(step) for step in steps] == [Redeem]


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 64,
        encode_frame(["claim", []]),
        encode_frame(["claim", {}]),
        encode_frame(["hello", {}]),
        encode_frame(["claim", {"version": 9}]),
        b"\x00\x00\x00\x03\x92\x01\x80",
        (200_000).to_bytes(4, "big"),
        b"\x00\x01\xff\xff" + b"\x91" * 0x1FFFF,
    ],
)
def test_garbage_is_refused_counted_and_costs_no_entry(data: bytes) -> None:
    member = Member(Cluster())
    visit = member.visit()
    visit.begin(0.0)
    steps = visit.received(data, 0.0, NOW_S)
    assert refusal(steps).code in {"MalformedMessage", "MalformedBody", "FrameTooLarge"}
    assert sum(member.door.refused.values()) == 1 and member.door.wrong_tokens.wrong_total == 1


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=6)
    | st.binary(max_size=70),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
SHARED = Member(Cluster())
SHARED_TOKEN = SHARED.cluster.token(uses=1000)


def fields_of(data: bytes) -> dict[str, Any]:
    (frame,) = FrameDecoder().feed(data)
    found: dict[str, Any] = frame[1]
    return found


def own_visit() -> JoinVisit:
    visit = SHARED.door.open("10.0.0.2", SHARED.cluster.bundle, SHARED.material.certificate, bytes(32), 0.0)
    assert len(visit.begin(0.0)) == 1
    return visit


def own_claim(host_id: str = "host-b", request: bytes | None = None, packed: bytes | None = None) -> JoinClaim:
    """A claim that a holder of the token signs, whatever it holds."""
    request = make_request(new_private_key(), CLUSTER, "host-b", CAPABILITIES.addresses) if request is None else request
    packed = CAPABILITIES.pack() if packed is None else packed
    server = digest(SHARED.material.certificate)
    return JoinClaim(CLUSTER, SHARED_TOKEN.token_id, host_id, bytes(32), server, request, packed).signed(SHARED_TOKEN)


@given(st.data())
def test_a_claim_with_any_field_replaced_is_refused_by_name(data: st.DataObject) -> None:
    SHARED.door.wrong_tokens = WrongTokens()
    fields = fields_of(encode_claim(own_claim()))
    fields[data.draw(st.sampled_from([*sorted(fields), "more"]))] = data.draw(anything)
    visit = own_visit()
    steps = visit.received(encode_frame(["claim", fields]), 0.0, NOW_S)
    if fields["version"] == 1 and isinstance(steps[0], Redeem):
        visit.closed()
        return
    assert isinstance(refusal(steps), TrustError | MalformedMessage)
    assert SHARED.door.visits == 0


packed_anything = st.dictionaries(
    st.sampled_from(["cpu_milli", "memory_mib", "addresses", "software", "rack", "devices", "measured", "x"]), anything
).map(lambda fields: encode_frame([fields])[5:])


@given(
    st.sampled_from(["host-c", "HOST", "a/b"]) | st.none(),
    st.binary(max_size=80) | st.none(),
    st.binary(max_size=80) | packed_anything | st.none(),
)
def test_a_holder_of_the_token_who_signs_nonsense_is_refused_by_name(
    host_id: str | None, request: bytes | None, packed: bytes | None
) -> None:
    SHARED.door.wrong_tokens = WrongTokens()
    visit = own_visit()
    steps = visit.received(encode_claim(own_claim(host_id or "host-b", request, packed)), 0.0, NOW_S)
    if (host_id, request, packed) == (None, None, None):
        assert isinstance(steps[0], Redeem)
        visit.closed()
    else:
        assert isinstance(refusal(steps), TrustError | MalformedMessage)
    assert SHARED.door.visits == 0


def hello_of(member: Member) -> bytes:
    visit = member.visit()
    (hello,) = visit.begin(0.0)
    visit.closed()
    assert isinstance(hello, Send)
    return hello.data


HELLO = hello_of(SHARED)


@given(st.integers(0, len(HELLO) - 1), st.integers(1, 255))
def test_a_hello_with_any_byte_changed_fails_by_name_or_changes_nothing_that_counts(at: int, flip: int) -> None:
    changed = bytearray(HELLO)
    changed[at] ^= flip
    joiner = new_joiner(SHARED_TOKEN)
    joiner.connected(SHARED.material.certificate.public_bytes(ENCODING))
    steps = joiner.received(bytes(changed), NOW_S)
    if steps and isinstance(steps[0], JoinFailed):
        return
    assert all(isinstance(step, Send) for step in steps)


@given(st.binary(max_size=300))
def test_a_joiner_that_is_sent_garbage_fails_by_name_or_waits(data: bytes) -> None:
    joiner = new_joiner(SHARED_TOKEN)
    joiner.connected(SHARED.material.certificate.public_bytes(ENCODING))
    steps = joiner.received(data, NOW_S)
    assert steps == [] or isinstance(steps[0], JoinFailed)


def test_a_member_that_speaks_out_of_turn_is_left() -> None:
    def said(*messages: bytes) -> ActorGridError:
        joiner = new_joiner(SHARED_TOKEN)
        joiner.connected(SHARED.material.certificate.public_bytes(ENCODING))
        steps = [step for message in messages for step in joiner.received(message, NOW_S)]
        return failure(next(step for step in steps if isinstance(step, JoinFailed)))

    welcome = encode(Welcome(CLUSTER, "host-b", 2, SHARED.cluster.certificate("host-b"), SHARED.cluster.bundle, ()))
    assert isinstance(said(welcome), MalformedMessage)
    assert isinstance(said(HELLO, HELLO), MalformedMessage)
    assert isinstance(said(encode_frame(["claim", {}])), MalformedMessage)
    assert isinstance(said(encode_frame(["refused", {}])), MalformedMessage)


def test_versions_without_overlap_are_named() -> None:
    joiner = new_joiner(SHARED_TOKEN)
    joiner.connected(SHARED.material.certificate.public_bytes(ENCODING))
    future = Hello((2, 3), "9.0", CLUSTER, bytes(32), SHARED.cluster.bundle)
    error = failure(joiner.received(encode(future), NOW_S)[0])  # type: ignore[arg-type]
    assert isinstance(error, PeerRefused) and "no protocol version" in str(error)


def test_a_hello_before_tls_is_up_is_not_answered() -> None:
    error = failure(new_joiner(SHARED_TOKEN).received(HELLO, NOW_S)[0])  # type: ignore[arg-type]
    assert isinstance(error, MalformedMessage)


# -- capabilities


def test_capabilities_come_back_as_they_were_packed() -> None:
    assert read_capabilities(CAPABILITIES.pack()) == CAPABILITIES


@pytest.mark.parametrize(
    "change",
    [
        {"cpu_milli": -1},
        {"cpu_milli": 2**60},
        {"addresses": ("not an address",)},
        {"addresses": tuple(f"10.0.0.{n}" for n in range(40))},
        {"listens": {str(n): "x" for n in range(9)}},
        {"rack": "x" * 300},
        {"software": "line\nline"},
        {"devices": tuple({"uuid": str(n)} for n in range(300))},
        {"devices": ({"nested": {"a": 1}},)},
        {"devices": tuple({"name": "x" * 5000} for _ in range(20))},
        {"measured": {"a": float("nan")}},
        {"measured": {str(n): 1.0 for n in range(50)}},
    ],
)
def test_capabilities_beyond_their_bounds_are_refused_before_they_are_sent(change: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        replace(CAPABILITIES, **change).pack()


@given(st.binary(max_size=200))
def test_bytes_that_are_no_capabilities_are_refused_by_name(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        read_capabilities(data)
