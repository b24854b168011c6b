"""What it costs a door to know who asks, what he may, and how much: beside a request that nobody looks at."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from actorgrid.access import Right, Role
from actorgrid.actors.gateway.server.auth import TokenGate
from actorgrid.actors.gateway.server.request_rate import RequestLimits, RequestRate
from actorgrid.actors.ledger.api_keys import make_key
from actorgrid.actors.ledger.credential_records import ApiKeyRecord

from .figures import Figure, registry

KEYS, ASKED = 1_000, 20_000
NOW_S = 1_800_000_000.0


@registry.add("authorisation")
def authorisation(runs: int) -> Iterator[Figure]:
    """CPU of a request's key, right and rate, of 1,000 keys of 100 tenants in turn."""
    records: dict[str, ApiKeyRecord] = {}
    shown = []
    for number in range(KEYS):
        user, tenant = f"u{number}@t{number % 100}", f"t{number % 100}"
        made = make_key(os.urandom(5), os.urandom(30), user, "admin", NOW_S, role=Role.USER, tenant=tenant)
        records[made[1]["id"]] = made[1]
        shown.append(f"Bearer {made[0]}")
    samples = []
    for _ in range(runs):
        gate, limits = TokenGate("t" * 43, Path("admin.token"), records.get), RequestLimits()
        rate = RequestRate(1_000_000, 1_000_000)
        began = time.process_time()
        for number in range(ASKED):
            who = gate.check(shown[number % KEYS], 0.0, NOW_S + 1)
            if who.scope(Right.SUBMIT_JOBS) is None or limits.take(who, rate, rate, time.monotonic_ns(), 1) is None:
                raise AssertionError("a user may submit, and his key is counted")
        samples.append((time.process_time() - began) / ASKED * 1e6)
    yield Figure("CPU of key, right and rate", "us", samples, False, must=20.0)
