"""How clusters, hosts and addresses are written in certificates: ``actorgrid://CLUSTER/host/HOST``.

The cluster stands where a URI has its host, so that an X.509 name constraint (RFC 5280, 4.2.1.10) on that part binds
an authority to its cluster in every TLS library, not only in our own check.
"""

from __future__ import annotations

import ipaddress
import re

from actorgrid.errors import BadRequest, CertificateRefused

SCHEME = "actorgrid"
ADDRESSES_MAX = 32
"""Addresses in one certificate."""

_ID = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9])?")
_HOST_URI = re.compile(rf"{SCHEME}://({_ID.pattern})/host/({_ID.pattern})")


def check_id(kind: str, value: str) -> str:
    """*value* if it may be the id of a *kind* (cluster, host): what a DNS label may be. Raises BadRequest."""
    if not _ID.fullmatch(value):
        raise BadRequest(
            f"not the id of a {kind}",
            asked=repr(value[:80]),
            found="an id is 1 to 63 of a-z, 0-9 and -, with no - at its ends",
        )
    return value


def authority_uri(cluster_id: str) -> str:
    """The URI that names the authority of a cluster."""
    return f"{SCHEME}://{check_id('cluster', cluster_id)}"


def host_uri(cluster_id: str, host_id: str) -> str:
    """The URI that names a host of a cluster."""
    return f"{authority_uri(cluster_id)}/host/{check_id('host', host_id)}"


def read_host_uri(uri: str) -> tuple[str, str]:
    """The cluster and the host that *uri* names. Raises CertificateRefused when it is not exactly such a name."""
    found = _HOST_URI.fullmatch(uri)
    if found is None:
        raise CertificateRefused(
            "the certificate does not name a host", asked=f"{SCHEME}://CLUSTER/host/HOST", found=repr(uri[:120])
        )
    return found[1], found[3]


def plain_address(address: str) -> str:
    """An IP address or DNS name in its one spelling. Raises BadRequest for anything else, wildcards among them."""
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        name = address.lower().removesuffix(".")
    labels = name.split(".")
    # A last label of digits would be read as an IP address by some and as a name by others.
    if len(name) > 253 or labels[-1].isdigit() or not all(_LABEL.fullmatch(label) for label in labels):
        raise BadRequest("not an IP address or DNS name", asked=repr(address[:120]))
    return name


def is_loopback(address: str) -> bool:
    """Whether *address* is a loopback address, which means another host on each host."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost" or address.endswith(".localhost")
