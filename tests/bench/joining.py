"""What a join costs in processor time, both sides of it, and how much of that is the statement of who votes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from actorgrid.actors.security.joiner import Joined
from actorgrid.actors.security.voters_statement import StatedVoters, VoterAddress, check_voters, sign_voters
from tests.security.join_rig import Member, join, new_joiner
from tests.security.rig import CLUSTER, NOW_S, Cluster

from .figures import Figure, registry

STATEMENTS, JOINS, VOTERS = 300, 20, 5


def _micros(work: Callable[[], object], times: int) -> float:
    began = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - began) / times * 1e6


@registry.add("joining")
def joining(runs: int) -> Iterator[Figure]:
    """CPU of a join through TLS in memory, without sockets and the ledger; of a statement of five voters."""
    cluster, key, challenge = Cluster(), "ab" * 32, bytes(32)
    voters = tuple(
        VoterAddress(f"{n:08x}-0000-4000-8000-{n:012x}", n, f"10.0.0.{n}:7402", f"10.0.0.{n}:7401", "", f"{n:064x}")
        for n in range(1, VOTERS + 1)
    )
    stated = StatedVoters(CLUSTER, "host-b", 9, key, challenge, 1, 100, 2, NOW_S, voters)
    statement = sign_voters(cluster.authority, stated)

    def whole() -> None:
        if not isinstance(join(Member(cluster), new_joiner(cluster.token())), Joined):
            raise AssertionError("the host is let in")

    def check() -> object:
        return check_voters(statement, cluster.bundle, "host-b", key, [challenge])

    signing = [_micros(lambda: sign_voters(cluster.authority, stated), STATEMENTS) for _ in range(runs)]
    checking = [_micros(check, STATEMENTS) for _ in range(runs)]
    yield Figure("CPU of signing who votes, on the voter", "us", signing, False)
    yield Figure("CPU of checking it, on the new host", "us", checking, False)
    yield Figure("CPU of a whole join, both sides", "us", [_micros(whole, JOINS) for _ in range(runs)], False)
