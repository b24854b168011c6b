"""What the authority issues, what it refuses to, and what a certificate of it looks like to a strict reader."""

from __future__ import annotations

import datetime
import ssl
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import AttributeOID, ExtendedKeyUsageOID, NameOID
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.actors.ledger.names import host_uri, plain_address, read_host_uri
from actorgrid.actors.security.authority import AUTHORITY_LIFE_S, HOST_LIFE_S, Authority
from actorgrid.actors.security.certificate_requests import alternative_names, check_request, make_request
from actorgrid.actors.security.certificates import (
    check_authority,
    check_host,
    fingerprint,
    identify,
    read_certificate,
)
from actorgrid.actors.security.host_material import HostMaterial
from actorgrid.actors.security.keys import new_private_key
from actorgrid.actors.security.tls_contexts import ssl_contexts
from actorgrid.errors import ActorGridError, BadRequest, CertificateRefused, WrongCluster
from tests.security.rig import CLUSTER, DAY_S, NOW_S, OTHER_CLUSTER, Cluster, Pair, new_authority

HOST = "host-a"


def own_request(
    key: Any = None,
    names: x509.SubjectAlternativeName | None = None,
    subject: x509.Name | None = None,
    extension: x509.ExtensionType | None = None,
    algorithm: Any = None,
    attribute: bytes | None = None,
) -> bytes:
    """A request as somebody else's program might make it."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject or x509.Name([]))
    builder = builder.add_extension(names or alternative_names(CLUSTER, HOST, ()), critical=False)
    if extension is not None:
        builder = builder.add_extension(extension, critical=True)
    if attribute is not None:
        builder = builder.add_attribute(AttributeOID.CHALLENGE_PASSWORD, attribute)
    return builder.sign(key or new_private_key(), algorithm or hashes.SHA256()).public_bytes(Encoding.DER)


def uri(text: str) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([x509.UniformResourceIdentifier(text)])


def test_an_authority_is_bound_to_its_cluster_and_issues_to_hosts_only() -> None:
    authority = new_authority()
    extensions = authority.certificate.extensions
    basic = extensions.get_extension_for_class(x509.BasicConstraints)
    assert basic.critical and basic.value.ca and basic.value.path_length == 0
    constraints = extensions.get_extension_for_class(x509.NameConstraints)
    assert constraints.critical and constraints.value.permitted_subtrees == [x509.UniformResourceIdentifier(CLUSTER)]
    usage = extensions.get_extension_for_class(x509.KeyUsage).value
    assert usage.key_cert_sign and not usage.digital_signature
    life = authority.certificate.not_valid_after_utc - authority.certificate.not_valid_before_utc
    assert abs(life.total_seconds() - AUTHORITY_LIFE_S) < 600
    assert check_authority(authority.certificate, CLUSTER) == 1


def test_a_hosts_certificate_names_it_serves_both_ends_and_lives_90_days() -> None:
    cluster = Cluster()
    key = new_private_key()
    certificate = cluster.certificate(HOST, key, ("10.0.0.1", "GPU-1.example.", "fe80::1"))
    extensions = certificate.extensions
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [f"actorgrid://{CLUSTER}/host/{HOST}"]
    assert sorted(map(str, names.get_values_for_type(x509.IPAddress))) == ["10.0.0.1", "fe80::1"]
    assert names.get_values_for_type(x509.DNSName) == ["gpu-1.example"]
    assert set(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == {
        ExtendedKeyUsageOID.SERVER_AUTH,
        ExtendedKeyUsageOID.CLIENT_AUTH,
    }
    identity = check_host(certificate, [cluster.authority.certificate], CLUSTER, NOW_S)
    assert (identity.host_id, identity.generation, identity.fingerprint) == (HOST, 1, fingerprint(key))
    assert abs(identity.valid_until_s - NOW_S - HOST_LIFE_S) < 2
    assert identity.valid_from_s < NOW_S - 200


def test_nothing_outlives_the_authority_and_an_expired_one_issues_nothing() -> None:
    cluster = Cluster(now_s=NOW_S)
    near_end = NOW_S + AUTHORITY_LIFE_S - 10 * DAY_S
    late = cluster.certificate(HOST, now_s=near_end)
    assert late.not_valid_after_utc == cluster.authority.certificate.not_valid_after_utc
    assert cluster.bundle.rotation_due(near_end) and not cluster.bundle.rotation_due(NOW_S)
    with pytest.raises(CertificateRefused, match="expired"):
        cluster.certificate(HOST, now_s=NOW_S + AUTHORITY_LIFE_S + DAY_S)


def test_the_fingerprint_stays_with_the_key_through_a_renewal() -> None:
    cluster = Cluster()
    key = new_private_key()
    assert fingerprint(cluster.certificate(HOST, key)) == fingerprint(cluster.certificate(HOST, key, now_s=NOW_S + 1))
    assert fingerprint(cluster.certificate(HOST)) != fingerprint(key)


@pytest.mark.parametrize(
    ("request_of", "match"),
    [
        (lambda: own_request(names=uri(host_uri(CLUSTER, "host-b"))), "other names"),
        (lambda: own_request(names=uri(host_uri(OTHER_CLUSTER, HOST))), "other names"),
        (lambda: own_request(names=uri(f"actorgrid://{CLUSTER}")), "other names"),
        (
            lambda: own_request(
                names=x509.SubjectAlternativeName([*alternative_names(CLUSTER, HOST, ()), x509.DNSName("*.example")])
            ),
            "other names",
        ),
        (lambda: own_request(names=alternative_names(CLUSTER, HOST, ["10.0.0.9"])), "other names"),
        (lambda: own_request(rsa.generate_private_key(65537, 2048)), "not used here"),
        (lambda: own_request(ec.generate_private_key(ec.SECP224R1())), "not used here"),
        (lambda: own_request(ec.generate_private_key(ec.SECP384R1())), "not used here"),
        (lambda: own_request(algorithm=hashes.SHA512()), "SHA-256"),
        (lambda: own_request(extension=x509.BasicConstraints(ca=True, path_length=None)), "nothing else"),
        (lambda: own_request(extension=x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING])), "nothing else"),
        (lambda: own_request(attribute=b"password"), "nothing else"),
        (
            lambda: own_request(subject=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])),
            "nothing else",
        ),
        (lambda: own_request() + b"\0" * 9000, "too large"),
        (lambda: b"", "cannot be read"),
        (lambda: b"\x30\x80", "cannot be read"),
    ],
)
def test_a_request_for_anything_but_the_hosts_own_name_is_refused(request_of: Any, match: str) -> None:
    with pytest.raises(CertificateRefused, match=match):
        check_request(request_of(), CLUSTER, HOST, ())


def test_a_request_signed_by_another_key_is_refused() -> None:
    good = make_request(new_private_key(), CLUSTER, HOST)
    broken = good[:-1] + bytes([good[-1] ^ 1])
    with pytest.raises(CertificateRefused):
        check_request(broken, CLUSTER, HOST, ())


def test_an_address_of_another_host_is_refused_and_loopback_is_everyones() -> None:
    addresses = ("10.0.0.1", "127.0.0.1", "localhost")
    request = make_request(new_private_key(), CLUSTER, HOST, addresses)
    taken = {"10.0.0.1": HOST, "127.0.0.1": "host-b", "localhost": "host-b"}
    assert check_request(request, CLUSTER, HOST, addresses, taken).addresses == ("10.0.0.1", "127.0.0.1", "localhost")
    with pytest.raises(CertificateRefused, match="another host's"):
        check_request(request, CLUSTER, HOST, addresses, {"10.0.0.1": "host-b"})


def test_an_authority_issues_for_no_other_cluster() -> None:
    foreign = check_request(make_request(new_private_key(), OTHER_CLUSTER, HOST), OTHER_CLUSTER, HOST, ())
    with pytest.raises(WrongCluster):
        new_authority().issue(foreign, NOW_S, 1)


def test_an_authority_and_a_key_that_do_not_fit_are_refused() -> None:
    authority = new_authority()
    with pytest.raises(CertificateRefused, match="not that of the authority"):
        Authority(CLUSTER, authority.certificate, new_private_key())
    assert "key" not in repr(authority)


def forged(cluster: Cluster, names: x509.SubjectAlternativeName, **more: Any) -> HostMaterial:
    """What whoever has stolen the authority's key could make, past all that `issue` checks."""
    key = new_private_key()
    issuer = cluster.authority.certificate
    start = datetime.datetime.fromtimestamp(NOW_S - 60, datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "forged")]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(5)
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(more.get("ca", False), None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(more.get("purposes", list(BOTH))), critical=False)
        .add_extension(names, critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key()),  # type: ignore[arg-type]
            critical=False,
        )
    )
    return HostMaterial(key, builder.sign(cluster.authority.key, hashes.SHA256()), cluster.bundle)


BOTH = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


def test_the_name_constraint_stops_an_authority_from_naming_hosts_of_other_clusters() -> None:
    cluster = Cluster()
    good = ssl_contexts(cluster.host("host-b"))
    ours = ssl_contexts(forged(cluster, uri(host_uri(CLUSTER, HOST))))
    Pair(good.server, ours.client).shake()
    theirs = ssl_contexts(forged(cluster, uri(host_uri(OTHER_CLUSTER, HOST))))
    with pytest.raises(ssl.SSLCertVerificationError, match="permitted subtree"):
        Pair(good.server, theirs.client).shake()


@pytest.mark.parametrize(
    "names",
    [
        uri("actorgrid://x"),
        uri(f"https://{CLUSTER}/host/{HOST}"),
        uri(f"actorgrid://{CLUSTER}/host/{HOST}/more"),
        uri(f"actorgrid://{CLUSTER}/host/{HOST}%00"),
        uri(f"actorgrid://{CLUSTER}/host/Host-A"),
        x509.SubjectAlternativeName([x509.DNSName("host-a")]),
        x509.SubjectAlternativeName([x509.UniformResourceIdentifier(host_uri(CLUSTER, h)) for h in ("a", "b")]),
    ],
)
def test_a_certificate_that_does_not_name_exactly_one_host_names_none(names: x509.SubjectAlternativeName) -> None:
    with pytest.raises(CertificateRefused):
        identify(forged(Cluster(), names).certificate)


@pytest.mark.parametrize("more", [{"ca": True}, {"purposes": [ExtendedKeyUsageOID.SERVER_AUTH]}])
def test_a_certificate_for_another_purpose_is_no_hosts(more: dict[str, Any]) -> None:
    cluster = Cluster()
    material = forged(cluster, uri(host_uri(CLUSTER, HOST)), **more)
    with pytest.raises(CertificateRefused, match="not one for a host"):
        material.check(NOW_S)


def test_a_certificate_that_outlives_its_authority_is_refused() -> None:
    old = Cluster(now_s=NOW_S - AUTHORITY_LIFE_S - DAY_S)
    with pytest.raises(CertificateRefused, match="authority's certificate has expired"):
        forged(old, uri(host_uri(CLUSTER, HOST))).check(NOW_S)


@pytest.mark.parametrize(
    ("path_length", "permitted", "kind"),
    [(0, CLUSTER, None), (1, CLUSTER, CertificateRefused), (None, CLUSTER, CertificateRefused)]
    + [(0, permitted, CertificateRefused) for permitted in (OTHER_CLUSTER, "", ".example")],
)
def test_an_authority_with_more_power_than_its_cluster_needs_is_refused(
    path_length: int | None, permitted: str, kind: type[ActorGridError] | None
) -> None:
    key, start = new_private_key(), datetime.datetime.fromtimestamp(NOW_S, datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.SERIAL_NUMBER, "1")])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, start, start + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(True, path_length), critical=True)
        .add_extension(uri(f"actorgrid://{CLUSTER}"), critical=False)
        .add_extension(x509.NameConstraints([x509.UniformResourceIdentifier(permitted)], None), critical=True)
        .sign(key, hashes.SHA256())
    )
    if kind is None:
        assert check_authority(certificate, CLUSTER) == 1
    else:
        with pytest.raises(kind):
            check_authority(certificate, CLUSTER)


def test_certificates_outside_of_their_time_are_refused_with_both_times() -> None:
    cluster = Cluster()
    certificate = cluster.certificate(HOST)
    with pytest.raises(CertificateRefused, match="expired") as late:
        check_host(certificate, cluster.bundle.certificates, CLUSTER, NOW_S + 91 * DAY_S)
    assert "valid until" in late.value.asked and "here" in late.value.found
    with pytest.raises(CertificateRefused, match="not valid yet"):
        check_host(certificate, cluster.bundle.certificates, CLUSTER, NOW_S - DAY_S)


@given(st.binary(max_size=400))
def test_bytes_that_are_no_certificate_or_request_are_refused_by_name(data: bytes) -> None:
    with pytest.raises(CertificateRefused):
        read_certificate(data)
    with pytest.raises(CertificateRefused):
        check_request(data, CLUSTER, HOST, ())


GOOD_REQUEST = make_request(new_private_key(), CLUSTER, HOST, ("10.0.0.1",))


@given(st.integers(0, len(GOOD_REQUEST) - 1), st.integers(1, 255))
def test_a_request_with_any_byte_changed_is_refused_by_name(at: int, flip: int) -> None:
    changed = bytearray(GOOD_REQUEST)
    changed[at] ^= flip
    with pytest.raises(CertificateRefused):
        check_request(bytes(changed), CLUSTER, HOST, ("10.0.0.1",))


def test_a_signature_has_one_spelling() -> None:
    """With its last bit called unused it verifies as well, where that bit is 0."""
    signature = b"\1"
    while signature[-1] & 1:
        request = make_request(new_private_key(), CLUSTER, HOST, ("10.0.0.1",))
        signature = x509.load_der_x509_csr(request).signature
    changed = bytearray(request)
    changed[-len(signature) - 1] = 1
    assert x509.load_der_x509_csr(bytes(changed)).is_signature_valid
    with pytest.raises(CertificateRefused):
        check_request(bytes(changed), CLUSTER, HOST, ("10.0.0.1",))


@given(st.text(max_size=70))
def test_names_are_either_exact_or_refused(text: str) -> None:
    try:
        named = host_uri(text, text)
    except BadRequest:
        with pytest.raises(ActorGridError):
            read_host_uri(f"actorgrid://{text}/host/{text}")
        return
    assert read_host_uri(named) == (text, text)


@pytest.mark.parametrize("address", ["", "*", "*.example", "a b", "1.2.3", "256.1.1.1", "a..b", "-a", "a/b", "x" * 300])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(BadRequest):
        plain_address(address)


def test_a_host_of_more_addresses_than_a_certificate_holds_is_refused() -> None:
    many = tuple(f"10.0.0.{number}" for number in range(33))
    with pytest.raises(BadRequest, match="too many addresses"):
        make_request(new_private_key(), CLUSTER, HOST, many)
    with pytest.raises(CertificateRefused, match="too many addresses"):
        check_request(make_request(new_private_key(), CLUSTER, HOST), CLUSTER, HOST, many)
