"""Who may ask which model, and how much: keys, and what they used in this minute and this month. No clock.

Limits hold for a key as a whole: each gateway process counts what it admitted, tells the others a few times a second,
and adds what they told to its own. So a key that is used at several gateways at once may be over its limit by what they
admit within that time, and where gateways do not hear each other each enforces the limit for itself. Tokens are counted
by the bytes of a request when it comes, and as the answer tells them when it ends. What was used of a month elsewhere,
and by processes of before, comes from the gateway's main process (``month_budgets.py``), which keeps it.

The rate is that of a sliding minute: the last minute counts by how much of it is within 60 s. Wrong keys of one address
of another machine are answered 20 times, and once a second from then on.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from actorgrid.actors.ledger.api_keys import hash_of, key_id_of
from actorgrid.actors.security.token_rate_limit import Rate, TokenRateLimit
from actorgrid.actors.serving.table import ServiceKey
from actorgrid.errors import Overloaded

from .month_budgets import Spent
from .refusals import RequestRefused

MINUTE_S = 60.0
HEARD_S = 5.0
WRONG_OF_ONE, WRONG_IN_ALL = Rate(20.0, 1.0), Rate(50.0, 50.0)


@dataclass(slots=True)
class KeyCount:
    """What one gateway admitted of a key: in a minute (since the epoch), the one before, and a month."""

    minute: int = 0
    requests: int = 0
    tokens: int = 0
    requests_before: int = 0
    tokens_before: int = 0
    month: str = ""
    month_tokens: int = 0
    month_requests: int = 0

    def turn(self, at: float) -> None:
        """Go on to the minute and month of *at*, seconds since the epoch."""
        minute = int(at // MINUTE_S)
        if minute == self.minute:
            return
        if minute == self.minute + 1:
            self.requests_before, self.tokens_before = self.requests, self.tokens
            self.minute, self.requests, self.tokens = minute, 0, 0
        else:
            self.minute, self.requests, self.tokens = minute, 0, 0
            self.requests_before = self.tokens_before = 0
        month = month_of(at)
        if month != self.month:
            self.month, self.month_tokens, self.month_requests = month, 0, 0

    def rates(self, at: float) -> tuple[float, float]:
        """Requests and tokens of the minute that ends at *at*."""
        passed = at / MINUTE_S - self.minute
        if not 0 <= passed < 2:
            return 0.0, 0.0
        if passed >= 1:
            return self.requests * (2 - passed), self.tokens * (2 - passed)
        return self.requests + self.requests_before * (1 - passed), self.tokens + self.tokens_before * (1 - passed)


class KeyGate:
    """The keys of one gateway process."""

    def __init__(self) -> None:
        self._keys: dict[str, ServiceKey] = {}
        self._required = True
        self.counts: dict[str, KeyCount] = {}
        self._heard: dict[str, tuple[float, Mapping[str, KeyCount]]] = {}
        self._elsewhere: tuple[str, Mapping[str, Spent]] = ("", {})
        self._untold: set[str] = set()
        """Keys with a budget whose count of the month has changed."""
        self._wrong = TokenRateLimit("keys", WRONG_OF_ONE, WRONG_IN_ALL)
        self.refused_total = 0

    def use(self, keys: Iterable[ServiceKey], required: bool) -> None:
        """Take *keys* for all there are."""
        self._keys = {each.key_id: each for each in keys}
        self._required = required
        self.counts = {key_id: count for key_id, count in self.counts.items() if key_id in self._keys}

    def hear(self, gateway: str, counts: Mapping[str, KeyCount], now: float) -> None:
        """Take what another gateway admitted."""
        self._heard[gateway] = (now, counts)
        for other in [other for other, (at, _) in self._heard.items() if now - at > HEARD_S]:
            del self._heard[other]

    def spent_elsewhere(self, month: str, spent: Mapping[str, Spent]) -> None:
        """Take what keys have used of their budgets beside what is counted here."""
        self._elsewhere = (month, spent)

    def take_spent(self, at: float) -> tuple[str, dict[str, Spent]]:
        """The month, and what was counted here in it of each key whose count has changed."""
        month, untold, self._untold = month_of(at), self._untold, set()
        found: dict[str, Spent] = {}
        for key_id in untold:
            count = self.counts.get(key_id)
            if count is not None and count.month == month:
                found[key_id] = Spent(count.month_tokens, count.month_requests)
        return month, found

    def check(self, authorization: bytes | None, source: str, now: float, at: float) -> ServiceKey | None:
        """Whose key is shown; ``None`` where none is needed. *source*: the address, of another machine; else empty.

        *now* is monotonic, *at* seconds since the epoch. Raises RequestRefused.
        """
        given = b""
        if authorization is not None:
            scheme, _, given = authorization.partition(b" ")
            given = given.strip() if scheme.lower() == b"bearer" else b""
        text = given.decode("ascii", "replace")
        key_id = key_id_of(text) if given else None
        if key_id is None and not self._required and not source:
            return None  # what OpenAI's clients send where there is no key is a made-up one
        key = None if key_id is None else self._keys.get(key_id)
        right = hmac.compare_digest(hash_of(text), key.sha256 if key is not None else _NOBODY)
        if key is not None and right and (key.expires_at is None or at < key.expires_at):
            return key
        self.refused_total += 1
        try:
            self._wrong.check(source, now)
        except Overloaded:
            raise RequestRefused(429, "too many wrong keys", "too_many_wrong_keys", retry_after_s=5) from None
        self._wrong.count(source, now)
        message = "incorrect API key provided" if given else "you did not provide an API key: Authorization: Bearer KEY"
        raise RequestRefused(401, message, "invalid_api_key", should_retry=False)

    def allows(self, key: ServiceKey | None, model: str) -> bool:
        """Whether that key may ask that model."""
        return key is None or key.models is None or model in key.models

    def admit(self, key: ServiceKey | None, tokens: int, now: float, at: float) -> None:
        """Count a request of so many tokens. Raises RequestRefused, and counts nothing, where a limit is reached."""
        if key is None:
            return
        count = self.counts.get(key.key_id)
        if count is None:
            count = self.counts[key.key_id] = KeyCount()
        count.turn(at)
        requests, used = count.rates(at)
        for heard_at, others in self._heard.values():
            other = others.get(key.key_id)
            if other is not None and now - heard_at <= HEARD_S:
                other_requests, other_used = other.rates(at)
                requests += other_requests
                used += other_used
        if key.has_budget:
            self._check_budget(key, count)
        for limit, found, of in (
            (key.requests_per_minute, requests + 1, "requests"),
            (key.tokens_per_minute, used + tokens, "tokens"),
        ):
            if limit is not None and found > limit and (of == "requests" or used > 0 or not limit):
                raise RequestRefused(
                    429,
                    f"the key's limit of {limit} {of} a minute is reached",
                    "rate_limit_exceeded",
                    retry_after_s=max(1.0, MINUTE_S * min(1.0, (found - limit) / max(1, limit))),
                )
        count.requests += 1
        count.tokens += tokens
        count.month_tokens += tokens
        count.month_requests += 1
        if key.has_budget:
            self._untold.add(key.key_id)

    def _check_budget(self, key: ServiceKey, count: KeyCount) -> None:
        month, elsewhere = self._elsewhere
        spent = Spent(count.month_tokens, count.month_requests)
        if month == count.month:
            spent = spent.plus(elsewhere.get(key.key_id, Spent()))
        for budget, used, of in (
            (key.tokens_per_month, spent.tokens, "tokens"),
            (key.requests_per_month, spent.requests, "requests"),
        ):
            if budget is not None and used >= budget:
                raise RequestRefused(
                    429,
                    f"the key's budget of {budget} {of} a month is spent",
                    "insufficient_quota",
                    should_retry=False,
                )

    def settle(self, key: ServiceKey | None, counted: int, used: int, at: float) -> None:
        """Have a request count for what it used instead of what was *counted* when it came."""
        count = None if key is None else self.counts.get(key.key_id)
        if key is not None and count is not None:
            count.turn(at)
            count.tokens = max(0, count.tokens + used - counted)
            count.month_tokens = max(0, count.month_tokens + used - counted)
            if key.has_budget:
                self._untold.add(key.key_id)


def month_of(at: float) -> str:
    """The month of *at* (seconds since the epoch), like 2026-11, in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m")


_NOBODY = hash_of("")
