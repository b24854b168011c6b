"""What was used, by key and model, until the agent has it; and what it was for, for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from actorgrid.actors.serving.table import ModelUsage, ServiceKey

from .token_usage import UsedTokens

ROWS_MAX = 10_000


class UsageKey(NamedTuple):
    """By what usage is told apart."""

    key_id: str
    user: str
    tenant: str
    service: str
    model: str


class UsageLedger:
    """Rows that grow until they are taken. At 10,000 rows further keys and models are counted as those of nobody."""

    def __init__(self) -> None:
        self._rows: dict[UsageKey, list[int]] = {}

    def count(
        self,
        key: ServiceKey | None,
        tenant: str,
        service: str,
        model: str,
        usage: UsedTokens,
        estimated: int,
        aborted: bool,
    ) -> None:
        """Count one request."""
        of = UsageKey(
            "" if key is None else key.key_id,
            "" if key is None else key.user,
            (key.tenant if key is not None else "") or tenant,
            service,
            model,
        )
        prompt, cached, completion = usage
        self._add(of, (1, int(aborted), prompt, cached, completion, estimated))

    def add(self, rows: Iterable[ModelUsage]) -> None:
        """Add rows that another process has counted."""
        for row in rows:
            of = UsageKey(row.key_id, row.user, row.tenant, row.service, row.model)
            self._add(
                of,
                (
                    row.requests, row.aborted, row.prompt_tokens, row.cached_tokens, row.completion_tokens,
                    row.estimated_tokens,
                ),
            )  # fmt: skip

    def take(self) -> tuple[ModelUsage, ...]:
        """All rows; they are counted from nothing again."""
        rows, self._rows = self._rows, {}
        return tuple(ModelUsage(*of, *counts) for of, counts in rows.items())

    def _add(self, of: UsageKey, counts: tuple[int, int, int, int, int, int]) -> None:
        row = self._rows.get(of)
        if row is None:
            if len(self._rows) >= ROWS_MAX:
                of = UsageKey("", "", "", of.service, of.model)
                row = self._rows.setdefault(of, [0] * 6)
            else:
                row = self._rows[of] = [0] * 6
        requests, aborted, prompt, cached, completion, estimated = counts
        row[0] += requests
        row[1] += aborted
        row[2] += prompt
        row[3] += cached
        row[4] += completion
        row[5] += estimated
