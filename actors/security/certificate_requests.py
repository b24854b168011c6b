"""Requests for a host's certificate: how a host makes one, and what is refused in one.

A request (PKCS #10, RFC 2986) is signed with the key it is for, which proves that its sender has that key. It may ask
for names only; purpose, life and everything else are the authority's to say.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtensionOID

from actorgrid.actors.ledger.names import ADDRESSES_MAX, host_uri, is_loopback, plain_address
from actorgrid.errors import BadRequest, CertificateRefused

from .certificates import fingerprint, p256_key, refusing

REQUEST_BYTES_MAX = 8 * 1024


@dataclass(frozen=True, slots=True)
class HostRequest:
    """A request that passed :func:`check_request`."""

    cluster_id: str
    host_id: str
    addresses: tuple[str, ...]
    public_key: ec.EllipticCurvePublicKey
    fingerprint: str


def alternative_names(cluster_id: str, host_id: str, addresses: Iterable[str]) -> x509.SubjectAlternativeName:
    """A host's URI and addresses. Raises BadRequest for what is no address, or too many."""
    plain = sorted({plain_address(address) for address in addresses})
    if len(plain) > ADDRESSES_MAX:
        raise BadRequest("too many addresses for one host", asked=f"{len(plain)}", found=f"at most {ADDRESSES_MAX}")
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(host_uri(cluster_id, host_id))]
    for address in plain:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(address)))
        except ValueError:
            names.append(x509.DNSName(address))
    return x509.SubjectAlternativeName(names)


def make_request(
    key: ec.EllipticCurvePrivateKey, cluster_id: str, host_id: str, addresses: Iterable[str] = ()
) -> bytes:
    """A request (DER) for *key*, by its holder. Raises BadRequest for ids or addresses that cannot be."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    builder = builder.add_extension(alternative_names(cluster_id, host_id, addresses), critical=True)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)


def check_request(
    data: bytes, cluster_id: str, host_id: str, addresses: Iterable[str], taken: Mapping[str, str] | None = None
) -> HostRequest:
    """The request in *data* (DER), if it asks for host *host_id* and none but the *addresses* which that host has told.

    *taken* says which host (its id) has an address already; loopback is everyone's. Raises CertificateRefused for other
    names, anything but a P-256 key, a signature that does not prove possession of it, extensions other than the names,
    and an address of another host.
    """
    if len(data) > REQUEST_BYTES_MAX:
        raise CertificateRefused("the request is too large", found=f"{len(data)} bytes", asked=f"{REQUEST_BYTES_MAX}")
    with refusing("the request"):
        request = x509.load_der_x509_csr(data)
        key = p256_key(request)
        proven = isinstance(request.signature_hash_algorithm, hashes.SHA256) and request.is_signature_valid
        # DER has one spelling of a signature; the library reads one whose last bits are called unused as the same.
        proven = proven and data.endswith(b"\0" + request.signature)
        extensions = list(request.extensions)
        attributes = len(request.attributes)
        subject = len(list(request.subject))
    if not proven:
        raise CertificateRefused("the request is not signed by its own key with SHA-256")
    foreign = [each.oid.dotted_string for each in extensions if each.oid != ExtensionOID.SUBJECT_ALTERNATIVE_NAME]
    if foreign or attributes != 1 or subject:
        raise CertificateRefused(
            "a request asks for names and nothing else",
            found=f"a subject of {subject} part(s), {attributes} attribute(s), extensions {', '.join(foreign)[:120]}",
        )
    names = extensions[0].value
    try:
        allowed = alternative_names(cluster_id, host_id, addresses)
    except BadRequest as error:
        raise CertificateRefused(error.message, asked=error.asked, found=error.found) from error
    if not isinstance(names, x509.SubjectAlternativeName) or set(names) != set(allowed):
        raise CertificateRefused(
            "the request asks for other names than the host's own",
            asked=", ".join(
                str(name.value) for name in (names if isinstance(names, x509.SubjectAlternativeName) else ())
            )[:300],
            found=", ".join(str(name.value) for name in allowed)[:300],
        )
    plain = tuple(sorted({plain_address(address) for address in addresses}))
    for address in plain:
        owner = (taken or {}).get(address, host_id)
        if owner != host_id and not is_loopback(address):
            raise CertificateRefused(
                "the address is another host's",
                asked=f"{address} for host {host_id}",
                found=f"host {owner} has it",
                hint="let the other host leave first, or give this one its own address",
            )
    return HostRequest(cluster_id, host_id, plain, key, fingerprint(request))
