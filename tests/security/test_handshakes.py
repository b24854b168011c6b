"""Who may speak with whom: real TLS between two hosts, in memory."""

from __future__ import annotations

import ssl
from dataclasses import replace

import pytest

from actorgrid.actors.security.certificates import identify
from actorgrid.actors.security.host_material import HostMaterial
from actorgrid.actors.security.keys import new_private_key
from actorgrid.actors.security.tls_contexts import join_server_context, joiner_context, ssl_contexts
from actorgrid.errors import KeyUnusable, WrongCluster
from tests.security.rig import DAY_S, NOW_S, OTHER_CLUSTER, Cluster, Pair


def link(server: HostMaterial, client: HostMaterial) -> Pair:
    return Pair(ssl_contexts(server).server, ssl_contexts(client).client).shake()


def test_hosts_of_one_cluster_prove_to_each_other_who_they_are() -> None:
    cluster = Cluster()
    a, b = cluster.host("host-a"), cluster.host("host-b")
    pair = link(a, b)
    assert identify(pair.server.peer) == b.identity
    assert identify(pair.client.peer).host_id == "host-a"
    assert pair.send(pair.client, b"hello") == b"hello"
    assert pair.server.tls.version() == "TLSv1.3"


def test_a_host_of_another_cluster_is_refused_at_both_ends() -> None:
    ours, theirs = Cluster().host("host-a"), Cluster(OTHER_CLUSTER).host("host-a")
    with pytest.raises(ssl.SSLCertVerificationError):
        link(ours, theirs)
    with pytest.raises(ssl.SSLCertVerificationError):
        link(theirs, ours)


def test_an_authority_of_the_same_name_with_another_key_is_refused() -> None:
    ours, theirs = Cluster().host("host-a"), Cluster().host("host-b")
    with pytest.raises(ssl.SSLCertVerificationError):
        link(ours, theirs)


def test_the_server_refuses_who_has_no_certificate_and_who_shows_one_of_another_authority() -> None:
    cluster = Cluster()
    server = ssl_contexts(cluster.host("host-a")).server
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        Pair(server, joiner_context()).shake()
    # A client that believes everything, so that it is the server that refuses.
    gullible = ssl_contexts(Cluster(OTHER_CLUSTER).host("host-b")).client
    gullible.verify_mode = ssl.CERT_NONE
    with pytest.raises(ssl.SSLCertVerificationError):
        Pair(server, gullible).shake()


@pytest.mark.parametrize(
    ("issued_s", "reason"),
    [(NOW_S - 91 * DAY_S, "expired"), (NOW_S + DAY_S, "not yet valid")],
    ids=["expired", "not_yet_valid"],
)
def test_a_certificate_outside_of_its_time_is_refused(issued_s: float, reason: str) -> None:
    cluster = Cluster(now_s=NOW_S - 200 * DAY_S)
    good, bad = cluster.host("host-a", now_s=NOW_S), cluster.host("host-b", now_s=issued_s)
    with pytest.raises(ssl.SSLCertVerificationError, match=reason):
        link(good, bad)
    with pytest.raises(ssl.SSLCertVerificationError, match=reason):
        link(bad, good)


def test_hosts_on_both_sides_of_a_rotation_understand_each_other_until_the_old_authority_is_retired() -> None:
    cluster = Cluster()
    old = cluster.host("host-a")
    cluster.rotate()
    new = cluster.host("host-b")
    with pytest.raises(ssl.SSLCertVerificationError):
        link(old, new)
    caught_up = old.trusting(cluster.bundle)
    link(caught_up, new)
    link(new, caught_up)
    cluster.bundle = cluster.bundle.retire(1)
    with pytest.raises(ssl.SSLCertVerificationError):
        link(new.trusting(cluster.bundle), caught_up)


def test_a_removed_host_still_passes_tls_and_is_known_by_its_fingerprint_to_be_refused() -> None:
    cluster = Cluster()
    member, removed = cluster.host("host-a"), cluster.host("host-b")
    living = {member.identity.host_id: member.identity.fingerprint}

    def admit(host_id: str, fingerprint: str) -> str | None:
        return None if living.get(host_id) == fingerprint else f"{host_id} is no host of this cluster"

    found = identify(link(member, removed).server.peer)
    assert admit(found.host_id, found.fingerprint) == "host-b is no host of this cluster"
    # One who joins again under the name has another key: the old certificate gets nothing from the new entry.
    back = cluster.host("host-b")
    living["host-b"] = back.identity.fingerprint
    assert admit("host-b", found.fingerprint) is not None
    again = identify(link(member, back).server.peer)
    assert admit(again.host_id, again.fingerprint) is None


def test_no_session_is_taken_up_again() -> None:
    cluster = Cluster()
    pair = link(cluster.host("host-a"), cluster.host("host-b"))
    session = pair.client.tls.session
    assert session is None or not session.has_ticket


def test_older_tls_is_refused() -> None:
    cluster = Cluster()
    old = ssl_contexts(cluster.host("host-b")).client
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError, match=r"(?i)version|protocol"):
        Pair(ssl_contexts(cluster.host("host-a")).server, old).shake()


def test_the_door_asks_for_no_certificate() -> None:
    material = Cluster().host("host-a", ("10.0.0.1",))
    pair = Pair(join_server_context(material), joiner_context()).shake()
    assert identify(pair.client.peer).host_id == "host-a"
    assert pair.server.peer == b""


def test_https_clients_that_have_the_bundle_check_the_address_of_a_host() -> None:
    material = Cluster().host("host-a", ("10.0.0.1", "gpu-1.example"))
    client = ssl.create_default_context(cadata=material.bundle.pem)

    def handshake(address: str) -> None:
        pair = Pair(join_server_context(material), client)
        pair.client.tls = client.wrap_bio(pair.client.incoming, pair.client.outgoing, server_hostname=address)
        pair.shake()

    handshake("10.0.0.1")
    handshake("gpu-1.example")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake("10.0.0.2")


def test_a_key_that_is_not_the_certificates_makes_no_context() -> None:
    material = replace(Cluster().host("host-a"), key=new_private_key())
    with pytest.raises(KeyUnusable):
        material.check(NOW_S)
    with pytest.raises(KeyUnusable):
        ssl_contexts(material)


def test_material_with_another_clusters_bundle_is_refused() -> None:
    material = replace(Cluster().host("host-a"), bundle=Cluster(OTHER_CLUSTER).bundle)
    with pytest.raises(WrongCluster):
        material.check(NOW_S)
