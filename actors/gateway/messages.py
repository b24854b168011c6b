"""What the gateway takes from other servers of its host, beside what changes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlaceSecrets:
    """Write the secrets of an attempt that begins here into *folder*, a file (0400) each. Answer: their names.

    Raises DependencyFailed for what the attempt may not have, NotFound and HostUnreachable where it may come later.
    """

    attempt_id: str
    folder: str


@dataclass(frozen=True, slots=True)
class ReleaseSecrets:
    """The secrets of an attempt, for the host that it was granted to, which asks. Answer: {name: sealed, in hex}, for
    that host's certificate. Raises as ``PlaceSecrets``, NotSupported on a host without the keys."""

    attempt_id: str
    host_id: str
