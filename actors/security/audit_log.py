"""The audit log of a host: records on its disk, the tree over them, and heads of it that are signed.

    DATA_DIR/audit/        0700
      000000.jsonl         16,384 records, one line each; the next file has the next ones
      roots                32 bytes for each file that is whole: the root of its subtree
      checkpoints          tree heads, signed each second there is something new (audit_checkpoint.py)
      key                  what signs them (0600)

Records are written and synced together by a thread of its own (group commit). Who must not be answered before his
record is on the disk waits for it. Whole files are dropped, the oldest first, when all together pass the bound; their
roots stay, so that what is left still proves that it goes on from them.

When it is opened the log has to fit its last signed head. If it does not (a line was changed, cut out, moved, or the
end cut off, the heads are gone), the folder is put aside as it is, and a new log begins with a record that says so.

Bounds: 10,000 records wait for the disk, those beyond are lost and counted, and the log says how many; 1 MiB of
checkpoints, and as many again of those before.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from actorgrid.actors.files.private_files import make_private_folder, read_private, write_private
from actorgrid.actors.ledger.merkle_proofs import leaf_hash
from actorgrid.errors import AuditBroken, AuditGone

from .audit_checkpoint import ORIGIN, Checkpoint, notes_in, read_note, sign, verifier_key
from .audit_records import AuditFacts, AuditRecord, record_line, to_record
from .audit_tree import CHUNK, CHUNK_BITS, HASH_BYTES, MerkleTree

log = logging.getLogger("actorgrid.audit")

PENDING_MAX = 10_000
SIGN_EVERY_S = 1.0
GATHER_S = 0.005
"""So long the thread gathers records before it syncs them."""
RETRY_S = 1.0
SETTLE_S = 2.0
CHECKPOINT_BYTES_MAX = 2**20
LINE_MAX = 16 * 1024
SCANNED_MAX = 4 * CHUNK
"""Records that are looked through for one page of a list."""


class AuditLog:
    """The log of one host, of one process. *bytes_max*: what its records may take on the disk, when it is asked;
    *signed*: called, in the log's thread, for each head that was signed since the log was opened."""

    def __init__(
        self,
        folder: Path,
        host_id: str,
        bytes_max: Callable[[], int],
        signed: Callable[[AuditLog], None] = lambda _: None,
    ) -> None:
        self.folder, self.host_id = folder, host_id
        self._bytes_max, self._told_of = bytes_max, signed
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._kept = threading.Condition(self._lock)
        self._pending: list[tuple[bytes, Callable[[], None] | None]] = []
        self._closing = False
        self.lost_total = self._lost_untold = 0
        make_private_folder(folder)
        try:
            self._open()
        except AuditBroken as error:
            aside = folder.with_name(f"{folder.name}.broken-{int(time.time())}")
            log.error("the audit log does not fit its last signed head (%s): it is kept as %s", error, aside)
            key = read_private(folder / "key")
            os.rename(folder, aside)
            write_private(folder / "key", key)
            self._open()
            self.add(AuditFacts("admin", "", "admin", "*", "", "LOG", "a new log", aside.name, 0, "AuditBroken"))
        self._thread = threading.Thread(target=self._write, name="gateway-audit", daemon=True)
        self._thread.start()

    def _open(self) -> None:
        # Here and not above: what all processes of a host are forked from loads this module, and only its door signs.
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        try:
            seed = read_private(self.folder / "key")
        except FileNotFoundError:
            seed = Ed25519PrivateKey.generate().private_bytes_raw()
            write_private(self.folder / "key", seed)
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.origin = ORIGIN + self.host_id
        self.verifier = verifier_key(self.origin, self._key.public_key())
        roots = self._roots_file.read_bytes() if self._roots_file.exists() else b""
        whole = [roots[at : at + HASH_BYTES] for at in range(0, len(roots) - HASH_BYTES + 1, HASH_BYTES)]
        path = self._chunk_file(len(whole))
        data = path.read_bytes() if path.exists() else b""
        kept = data[: data.rfind(b"\n") + 1]
        if len(kept) != len(data):  # a line that was being written: nobody was told that it is there
            os.truncate(path, len(kept))
        leaves = [leaf_hash(line) for line in kept.splitlines()]
        self._tree = MerkleTree(whole, self._leaves_of)
        for leaf in leaves[:CHUNK]:
            self._tree.add(leaf)
        if len(leaves) > CHUNK:
            raise AuditBroken("a file of the audit log has too many records", asked=path.name)
        note = self._last_note()
        self._next = self._tree.size
        self._signed = -1
        """How many records the last head has; -1: there is none."""
        if note:
            head = read_note(note, self.verifier)
            if head.size > self._tree.size or self._tree.root(head.size) != head.root:
                raise AuditBroken("the records are not those of the last signed head", asked=f"{head.size} records")
            self._signed = head.size
        elif self._tree.size:
            raise AuditBroken("there are records, and no signed head", found=f"{self._tree.size} records")
        else:
            self._sign()  # from now on records without a head are a log that was tampered with
        self._save_roots(len(whole))
        self._file = open(self._chunk_file(len(self._tree.roots)), "ab", opener=_private)  # noqa: SIM115 - for its life

    # -- writing

    def add(self, facts: AuditFacts, when_kept: Callable[[], None] | None = None) -> None:
        """Add a record; *when_kept* is called, in the log's thread, once it is on the disk."""
        with self._lock:
            if len(self._pending) >= PENDING_MAX or self._closing:
                self.lost_total += 1
                self._lost_untold += 1
                return
            if self._lost_untold:
                told = AuditFacts("", "", "", "*", "", "LOG", "records lost", str(self._lost_untold), 0, "Overloaded")
                self._lost_untold = 0
                self._put(told, None)
            self._put(facts, when_kept)
            self._wake.notify()

    def _put(self, facts: AuditFacts, when_kept: Callable[[], None] | None) -> None:
        line = record_line(to_record(facts, self._next, time.time(), self.host_id))
        self._next += 1
        self._pending.append((line, when_kept))

    def close(self) -> None:
        """Write what waits, sign, and end the thread."""
        with self._lock:
            self._closing = True
            self._wake.notify()
        self._thread.join(5.0)

    def _write(self) -> None:
        signed_s = 0.0
        while True:
            with self._lock:
                if not self._pending and not self._closing:
                    # With nothing to sign a host that nobody asks anything does not wake up for this either.
                    self._wake.wait(SIGN_EVERY_S if self._signed < self._tree.size else None)
                closing, some = self._closing, bool(self._pending)
            if some and not closing:
                time.sleep(GATHER_S)
            with self._lock:
                batch = self._pending[:CHUNK]
            try:
                if batch:
                    self._keep(batch)
                now_s = time.monotonic()
                if closing or now_s - signed_s >= SIGN_EVERY_S:
                    if self._sign():
                        self._told_of(self)
                    signed_s = now_s
            except OSError as error:
                log.warning("the audit log cannot be written: %s", error)
                if closing:
                    return
                time.sleep(RETRY_S)
                continue
            if closing and not self._pending:
                self._file.close()
                return

    def _keep(self, batch: Sequence[tuple[bytes, Callable[[], None] | None]]) -> None:
        batch = batch[: CHUNK - len(self._tree.last)]
        at = self._file.tell()
        try:
            self._file.write(b"".join(line + b"\n" for line, _ in batch))
            self._file.flush()
            os.fdatasync(self._file.fileno())
        except OSError:
            with contextlib.suppress(OSError):  # what is written twice would be there twice
                os.truncate(self._file.fileno(), at)
            raise
        before = len(self._tree.roots)
        with self._lock:
            for line, _ in batch:
                self._tree.add(leaf_hash(line))
            del self._pending[: len(batch)]
            self._kept.notify_all()
        if len(self._tree.roots) > before:
            self._save_roots(before)
            self._file.close()
            self._file = open(self._chunk_file(len(self._tree.roots)), "ab", opener=_private)  # noqa: SIM115
            self._drop()
        for _, when_kept in batch:
            if when_kept is not None:
                when_kept()

    def _save_roots(self, before: int) -> None:
        if len(self._tree.roots) > before:
            with open(self._roots_file, "ab", opener=_private) as file:
                file.write(b"".join(self._tree.roots[before:]))
                file.flush()
                os.fsync(file.fileno())

    def _sign(self) -> bool:
        with self._lock:
            head = Checkpoint(self.origin, self._tree.size, self._tree.root())
        if head.size == self._signed:
            return False
        path = self._checkpoints_file
        if path.exists() and path.stat().st_size > CHECKPOINT_BYTES_MAX:
            os.replace(path, path.with_name("checkpoints.before"))
        with open(path, "ab", opener=_private) as file:
            file.write(sign(head, self._key).encode() + b"\n")
            file.flush()
            os.fdatasync(file.fileno())
        self._signed = head.size
        return True

    def _drop(self) -> None:
        kept = sorted(self.folder.glob("[0-9]*.jsonl"))
        size = sum(path.stat().st_size for path in kept)
        for path in kept[:-1]:
            if size <= self._bytes_max():
                return
            size -= path.stat().st_size
            path.unlink()

    # -- reading; from any thread

    def settle(self) -> None:
        """Wait until what was added is on the disk, for at most ``SETTLE_S``: a slow disk hides the latest records."""
        with self._lock:
            self._kept.wait_for(lambda: not self._pending, SETTLE_S)

    @property
    def size(self) -> int:
        """The number of records on the disk."""
        return self._tree.size

    @property
    def first_kept(self) -> int:
        """The first record that is still there."""
        kept = min((int(path.stem) for path in self.folder.glob("[0-9]*.jsonl")), default=0)
        return kept << CHUNK_BITS

    @property
    def roots(self) -> list[bytes]:
        """The roots of the files that are whole."""
        return list(self._tree.roots)

    def note(self) -> str:
        """A signed head of all that is on the disk now."""
        return self.head()[1]

    def head(self) -> tuple[Checkpoint, str]:
        """The head of all that is on the disk now, and its note."""
        with self._lock:
            head = Checkpoint(self.origin, self._tree.size, self._tree.root())
            return head, sign(head, self._key)

    def lines(self, first: int, limit: int) -> list[bytes]:
        """Up to *limit* records from *first* on, of one file. Raises AuditGone for those that were dropped."""
        if first >= self.size:
            return []
        path = self._chunk_file(first >> CHUNK_BITS)
        if not path.exists():
            raise AuditGone("those records are not kept any more", asked=str(first), found=f"from {self.first_kept} on")
        start = first % CHUNK
        known = min(CHUNK, self.size - (first - start))
        return path.read_bytes().splitlines()[start : min(known, start + limit)]

    def newest(self, before: int, limit: int, passes: Callable[[AuditRecord], bool]) -> tuple[list[AuditRecord], int]:
        """Records before *before* that pass, newest first, and where the next page begins; 0: nowhere."""
        found: list[AuditRecord] = []
        at = min(before, self.size)
        first, until = self.first_kept, max(0, at - SCANNED_MAX)
        while at > max(first, until) and len(found) < limit:
            start = (at - 1) & ~(CHUNK - 1)
            for line in reversed(self.lines(start, at - start)):
                at -= 1
                record: AuditRecord = json.loads(line)
                if passes(record):
                    found.append(record)
                    if len(found) == limit:
                        break
        return found, at if at > first else 0

    def inclusion(self, seq: int, size: int) -> list[bytes]:
        """The proof that a record is among the first *size*. Raises AuditGone."""
        with self._lock:
            return self._tree.inclusion(seq, size)

    def consistency(self, first: int, second: int) -> list[bytes]:
        """The proof that the log of *second* records begins with that of *first*. Raises AuditGone."""
        with self._lock:
            return self._tree.consistency(first, second)

    def _leaves_of(self, chunk: int) -> list[bytes]:
        path = self._chunk_file(chunk)
        if not path.exists():
            raise AuditGone("those records are not kept any more", asked=path.name)
        return [leaf_hash(line) for line in path.read_bytes().splitlines()]

    def _last_note(self) -> str:
        for path in (self._checkpoints_file, self._checkpoints_file.with_name("checkpoints.before")):
            notes = notes_in(path.read_text(encoding="utf-8")) if path.exists() else []
            if notes:
                return notes[-1]
        return ""

    def _chunk_file(self, chunk: int) -> Path:
        return self.folder / f"{chunk:06}.jsonl"

    @property
    def _roots_file(self) -> Path:
        return self.folder / "roots"

    @property
    def _checkpoints_file(self) -> Path:
        return self.folder / "checkpoints"


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
