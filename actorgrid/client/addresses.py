"""Where the hosts are that a client may speak to, and which of them it speaks to now: decisions only, no socket.

A client stays with the host it has until that one fails it, and then takes the next in line. What is learned from a
host (the members of its cluster) stands behind what was given, and goes when it is no member any more.

Bound: 64 addresses, of which the given ones come first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from actorgrid.errors import BadRequest

ADDRESSES_MAX = 64
SAID_CHARACTERS = 160
_LOOPBACK = ("localhost", "::1")


class Address(NamedTuple):
    """The address of one host's API."""

    url: str
    secure: bool
    host: str
    port: int
    prefix: str

    @property
    def loopback(self) -> bool:
        """Whether the address is on this machine."""
        return self.host in _LOOPBACK or self.host.startswith("127.")


def read_address(url: str) -> Address:
    """Read the URL of a host. Raises BadRequest for anything else."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise BadRequest(
            "not the URL of a host", asked=url, hint="write it like http://127.0.0.1:7400 or https://host:7400"
        )
    secure = parts.scheme == "https"
    return Address(url.rstrip("/"), secure, parts.hostname, port or (443 if secure else 80), parts.path.rstrip("/"))


def read_addresses(urls: str) -> tuple[Address, ...]:
    """The addresses in *urls*, between commas. Raises BadRequest for none, too many, or one that is no URL."""
    found = tuple(dict.fromkeys(read_address(url.strip()) for url in urls.split(",") if url.strip()))
    if not 1 <= len(found) <= ADDRESSES_MAX:
        raise BadRequest("not the URLs of hosts", asked=urls[:200], found=f"{len(found)}", hint=f"1 to {ADDRESSES_MAX}")
    return found


def nearest_first(here: str, members: Iterable[Mapping[str, Any]]) -> list[str]:
    """The URLs of *members* (of ``/api/members``): those at the site of the host *here*, which answered, before others.

    Whoever chose that host is near it: another of its site is the better one to go on with.
    """
    known = list(members)
    site = next((each.get("site") for each in known if each.get("host_id") == here), None)
    return [each["url"] for each in sorted(known, key=lambda each: each.get("site") != site) if each["url"]]


class Addresses:
    """The line of hosts; the first is the one in use. Whoever shares it between threads guards it."""

    def __init__(self, given: Iterable[Address]) -> None:
        self._given = tuple(given)
        self._line = list(self._given)
        self._said: dict[str, str] = {}

    @property
    def current(self) -> Address:
        """The address in use."""
        return self._line[0]

    def __len__(self) -> int:
        return len(self._line)

    @property
    def text(self) -> str:
        """All addresses in the order they are tried, for an error's text."""
        return ", ".join(address.url for address in self._line)

    @property
    def said(self) -> str:
        """What each failed address answered, for an error's text."""
        known = {address.url for address in self._line}
        return "; ".join(f"{url}: {words}" for url, words in self._said.items() if url in known)

    def failed(self, address: Address, words: str) -> None:
        """Note that *address* failed; when it is the one in use, the next is from now on."""
        self._said[address.url] = words[:SAID_CHARACTERS]
        if self._line[0] == address:
            self._line.append(self._line.pop(0))

    def answered(self, address: Address) -> None:
        """Note that *address* answered."""
        self._said.pop(address.url, None)

    def learned(self, members: Iterable[Address]) -> None:
        """Take the hosts of the cluster, besides those that were given."""
        wanted = dict.fromkeys((*self._given, *members))
        kept = [address for address in self._line if address in wanted]
        new = [address for address in wanted if address not in kept]
        self._line = (kept + new)[:ADDRESSES_MAX] or self._line
