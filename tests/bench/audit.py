"""The audit log: records a second that are on the disk, and an export of a million verified without a cluster."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from actorgrid.actors.ledger.merkle_proofs import leaf_hash
from actorgrid.actors.security.audit_checkpoint import Checkpoint, sign, verifier_key
from actorgrid.actors.security.audit_export import export_header, verify_export
from actorgrid.actors.security.audit_log import PENDING_MAX, AuditLog
from actorgrid.actors.security.audit_records import AuditFacts, record_line, to_record
from actorgrid.actors.security.audit_tree import GrowingRoot

from .figures import Figure, registry

KEPT, EXPORTED = 20_000, 1_000_000
FACTS = AuditFacts("ann@lab", "k1", "user", "lab", "10.0.0.7", "POST", "/api/jobs", "/api/jobs", 200, "done")


@registry.add("audit")
def audit(runs: int) -> Iterator[Figure]:
    """Records a second until they are on the disk, the CPU of each, and how long a million take to be verified."""
    rates, costs = [], []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            log = AuditLog(Path(folder) / "audit", "h1", lambda: 2**30)
            room, kept = threading.Semaphore(PENDING_MAX // 2), threading.Semaphore(0)

            def on_disk(room: threading.Semaphore = room, kept: threading.Semaphore = kept) -> None:
                room.release()
                kept.release()

            began, cpu = time.perf_counter(), time.process_time()
            for _ in range(KEPT):
                room.acquire()
                log.add(FACTS, on_disk)
            for _ in range(KEPT):
                kept.acquire()
            rates.append(KEPT / (time.perf_counter() - began))
            costs.append((time.process_time() - cpu) / KEPT * 1e6)
            assert log.size == KEPT and not log.lost_total
            log.close()
    yield Figure("records kept, a second", "/s", rates, True, must=5_000.0)
    yield Figure("CPU of a record", "us", costs, higher_is_better=False)
    yield Figure("a million records verified", "s", [_verified()], higher_is_better=False, must=60.0)


def _verified() -> float:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key, origin, tree = Ed25519PrivateKey.generate(), "actorgrid/audit/h1", GrowingRoot()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "export"
        verifier = verifier_key(origin, key.public_key())
        with path.open("wb") as file:
            file.write(export_header(origin, verifier, 0, []).encode() + b"\n")
            for number in range(EXPORTED):
                line = record_line(to_record(FACTS, number, 1.7e9 + number / 1000, "h1"))
                tree.add(leaf_hash(line))
                file.write(line + b"\n")
        note = sign(Checkpoint(origin, EXPORTED, tree.root), key)
        began = time.perf_counter()
        with path.open("rb") as file:
            found = verify_export(iter(file), [note], verifier)
        took = time.perf_counter() - began
    assert found.records == found.signed == EXPORTED
    return took
