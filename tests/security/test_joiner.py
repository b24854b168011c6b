"""A join from both sides: through real TLS, with whoever may stand in between."""

from __future__ import annotations

from dataclasses import replace

import pytest

from actorgrid.actors.ledger.join_tokens import JoinClaim, revoke_token
from actorgrid.actors.security.certificate_requests import make_request
from actorgrid.actors.security.host_material import HostMaterial
from actorgrid.actors.security.join_acceptor import Redeem, examine
from actorgrid.actors.security.join_messages import (
    JoinRefused,
    JoinWelcome,
    encode,
)
from actorgrid.actors.security.joiner import Close, Joined, JoinFailed, SendBytes
from actorgrid.actors.security.keys import new_private_key
from actorgrid.actors.security.tls_contexts import ssl_contexts
from actorgrid.errors import (
    ActorGridError,
    CertificateRefused,
    JoinTokenExpired,
    JoinTokenRevoked,
    JoinTokenUsed,
    NotLeader,
    PeerRefused,
    TrustError,
    UnknownJoinToken,
    WrongCluster,
)
from tests.security.join_rig import (
    CAPABILITIES,
    ENCODING,
    Change,
    Member,
    failure,
    join,
    new_joiner,
)
from tests.security.rig import CLUSTER, DAY_S, NOW_S, OTHER_CLUSTER, Cluster, Pair


def test_a_new_host_joins_and_speaks_with_the_others_as_one_of_them() -> None:
    cluster = Cluster()
    member, key = Member(cluster), new_private_key()
    outcome = join(member, new_joiner(cluster.token(), key=key))
    assert isinstance(outcome, Joined)
    welcome = outcome.welcome
    assert (welcome.host_id, welcome.node) == ("host-b", 2)
    (voter,) = outcome.stated.voters
    assert (voter.raft, voter.fingerprint) == ("10.0.0.1:7402", member.material.identity.fingerprint)
    assert (outcome.stated.host_id, outcome.stated.position) == ("host-b", (1, 9))
    new = HostMaterial(key, welcome.certificate, welcome.bundle)
    assert new.check(NOW_S).host_id == "host-b"
    Pair(ssl_contexts(member.material).server, ssl_contexts(new).client).shake()
    Pair(ssl_contexts(new).server, ssl_contexts(member.material).client).shake()
    assert (member.door.welcomed, member.door.exchanges, sum(member.door.refused.values())) == (1, 0, 0)


def test_what_the_host_has_arrives_as_it_was_told() -> None:
    cluster = Cluster()
    member, seen = Member(cluster), []
    examined = member.redeem

    def keep(asked: Redeem) -> JoinWelcome | ActorGridError:
        seen.append(asked)
        return examined(asked)

    member.redeem = keep  # type: ignore[method-assign]
    join(member, new_joiner(cluster.token()))
    assert seen[0].capabilities == CAPABILITIES
    assert seen[0].request.addresses == ("10.0.0.2", "gpu-2.example")


def test_the_secret_of_the_token_never_crosses_and_nothing_does_before_the_member_is_proven() -> None:
    cluster = Cluster()
    token = cluster.token()
    exchange, joiner = Member(cluster).exchange(), new_joiner(token)
    assert joiner.connected(b"not the certificate of anyone") == []
    (hello,) = exchange.begin(0.0)
    assert isinstance(hello, SendBytes)
    outcome = joiner.received(hello.data, NOW_S)
    assert [type(step) for step in outcome] == [JoinFailed, Close]

    member = Member(cluster)
    exchange, joiner = member.exchange(), new_joiner(token)
    joiner.connected(member.material.certificate.public_bytes(ENCODING))
    (hello,) = exchange.begin(0.0)
    (claim,) = joiner.received(hello.data, NOW_S)  # type: ignore[union-attr]
    assert isinstance(claim, SendBytes)
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
    exchange = true_one.exchange()
    (hello,) = exchange.begin(0.0)
    (claim,) = joiner.received(hello.data, NOW_S)  # type: ignore[union-attr]
    refused, _ = exchange.received(claim.data, 0.0, NOW_S)  # type: ignore[union-attr]
    assert true_one.door.refused == {"UnknownJoinToken": 1}
    assert isinstance(refused, SendBytes)


def test_an_old_claim_is_of_no_use_on_another_visit() -> None:
    cluster = Cluster()
    member = Member(cluster)
    joiner = new_joiner(cluster.token())
    joiner.connected(member.material.certificate.public_bytes(ENCODING))
    first = member.exchange()
    (hello,) = first.begin(0.0)
    (claim,) = joiner.received(hello.data, NOW_S)  # type: ignore[union-attr]
    again = member.exchange()
    again.begin(0.0)
    again.received(claim.data, 0.0, NOW_S)  # type: ignore[union-attr]
    assert member.door.refused == {"UnknownJoinToken": 1}


def test_advice_of_one_who_has_proven_nothing_is_not_shown() -> None:
    joiner = new_joiner(Cluster().token())
    joiner.connected(b"")
    advice = encode(JoinRefused(JoinTokenUsed("used", hint="run this command as root")))
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


def test_a_welcome_by_an_authority_that_nobody_we_know_endorses_is_not_entered() -> None:
    cluster, rogue, key = Cluster(), Cluster(), new_private_key()

    def of_rogue(welcome: JoinWelcome) -> JoinWelcome:
        certificate = rogue.certificate("host-b", key, CAPABILITIES.addresses)
        return replace(welcome, certificate=certificate, bundle=rogue.bundle)

    error = failure(join(Member(cluster), new_joiner(cluster.token(), key=key), answer=of_rogue))
    assert isinstance(error, CertificateRefused) and "not the one we know" in str(error)


def test_a_token_that_cannot_be_redeemed_costs_the_ledger_nothing() -> None:
    cluster = Cluster()
    member, asked = Member(cluster), []
    member.redeem = asked.append  # type: ignore[method-assign, assignment]
    assert isinstance(failure(join(member, new_joiner(cluster.token(at=NOW_S - 7200)))), JoinTokenExpired)
    assert asked == []


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
