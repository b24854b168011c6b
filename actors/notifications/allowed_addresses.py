"""Which addresses a webhook that a user named may reach: those of the public internet, and what the operator allows.

Whoever may submit jobs could otherwise have the host that leads knock at doors which only that host reaches: its own,
those of a cloud's metadata service, those of the network it stands in (OWASP, Server Side Request Forgery). So the
address is looked at, not the name, and the very address that was looked at is connected to: a name that gives another
one the second time it is asked (DNS rebinding) gains nothing.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""IPv6 addresses that a translator turns into IPv4 ones (RFC 6052)."""
GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
"""The IPv6 addresses of the public internet. ``is_global`` is true of others, too: site-local ones (fec0::/10), those
that hold an IPv4 address of old (::/96), and those of a translator within a network (64:ff9b:1::/48, RFC 8215)."""
OF_CLOUDS = (ipaddress.IPv4Network("168.63.129.16"), ipaddress.IPv4Network("192.0.0.0/24"))
"""Addresses that look public, at which clouds serve their own machines (Azure's WireServer; Oracle's metadata)."""
SETTING = "notifications.allowed_networks"


def networks_of(texts: Iterable[str]) -> tuple[IpNetwork, ...]:
    """Networks as settings have them, ``10.0.0.0/8``. Raises ValueError."""
    return tuple(ipaddress.ip_network(text, strict=False) for text in texts)


def inner_address(address: IpAddress) -> IpAddress:
    """The IPv4 address that an IPv6 one stands for; else the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else address)


def refusal(address: IpAddress, allowed: Iterable[IpNetwork]) -> str:
    """Why a user's webhook must not reach *address*; empty: it may."""
    inner = inner_address(address)
    if is_allowed(address, allowed) or _is_public(inner):
        return ""
    if inner.is_loopback or inner.is_unspecified:
        kind = "this host itself"
    elif inner.is_link_local:
        kind = "a link-local address, as a cloud's metadata service has"
    elif inner.is_private:
        kind = "an address of a private network"
    else:
        kind = "no address of the public internet"
    return f"{address} is {kind}; {SETTING} allows such addresses, and targets that the operator names need none"


def _is_public(inner: IpAddress) -> bool:
    if isinstance(inner, ipaddress.IPv6Address):
        return inner in GLOBAL_UNICAST and inner.is_global
    return inner.is_global and not inner.is_multicast and not any(inner in network for network in OF_CLOUDS)


def is_allowed(address: IpAddress, allowed: Iterable[IpNetwork]) -> bool:
    """Whether the operator has allowed that very address."""
    inner = inner_address(address)
    return any(address in network or inner in network for network in allowed)
