"""The identity provider's keys, as they were told last, and when they may be asked for again. No clock, no socket.

They are believed for ten minutes: so long a key that the provider took back goes on here. A token that names a key
which is not among them has them fetched anew, since that is how a new key shows; but at most each ten seconds, so that
tokens with made-up names cost the provider nothing. After a fetch that failed there is a pause of two seconds, in which
all get the same error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from actorgrid.errors import ActorGridError

from .oidc_tokens import ProviderKey, TokenHeader, find_key

KEPT_S: Final = 600.0
AGAIN_S: Final = 10.0
FAILED_S: Final = 2.0


class ProviderKeys:
    """At most 64 keys (``read_keys``). Times are seconds on a clock that only goes forward."""

    def __init__(self) -> None:
        self._keys: Sequence[ProviderKey] = ()
        self._fetched_s = -math.inf
        self._failed_s = -math.inf
        self._failure: ActorGridError | None = None

    def find(self, header: TokenHeader, now_s: float) -> ProviderKey | None:
        """The key that a token names, if it is known."""
        return find_key(self._keys, header) if now_s - self._fetched_s < KEPT_S else None

    def may_fetch(self, now_s: float) -> bool:
        """Whether they may be asked for. Raises the error of the last time, in the pause after it."""
        if self._failure is not None and now_s - self._failed_s < FAILED_S:
            raise self._failure
        return now_s - self._fetched_s >= AGAIN_S

    def wait_s(self, now_s: float) -> float:
        """How long it takes until they may be asked for."""
        return max(0.0, AGAIN_S - (now_s - self._fetched_s))

    def fetched(self, keys: Sequence[ProviderKey], now_s: float) -> None:
        """Take what was told."""
        self._keys, self._fetched_s, self._failure = keys, now_s, None

    def failed(self, error: ActorGridError, now_s: float) -> None:
        """Note that they could not be had; those of before are believed for their time."""
        self._failure, self._failed_s = error, now_s
