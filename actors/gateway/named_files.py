"""The files that requests name by their digests, sent before: there for whoever has sent them, or may act for anybody.

See ``files/sent_files.py``. On a host to which a tenant has sent nothing, its work may still name what its own jobs
name: a job that submits others in its own working directory runs where the scheduler put it.
"""

from __future__ import annotations

from collections.abc import Collection

from actorgrid.access import tenant_of
from actorgrid.actors.ledger.messages import Query
from actorgrid.actors.ledger.query_answers import FilesInUse

from .server.route import RequestContext

ASKED_MAX = 1_000
"""Names in one question to the ledger (``files_in_use``)."""
ANSWER_S = 10.0


async def here_of(call: RequestContext, digests: Collection[str]) -> frozenset[str]:
    """Which of *digests* are here for the caller; they are young again then, and stay until a job names them.

    Raises StorageError, and what the ledger is refused with.
    """
    store, sent = call.app.blobs, call.app.sent_files
    wanted = list(dict.fromkeys(digests))
    here = await call.app.in_pool(lambda: [digest for digest in wanted if store.has(digest)])
    if call.who.is_cluster_admin or not here:
        return frozenset(here)
    tenant = tenant_of(call.who.user)
    known = await call.app.in_pool(lambda: {digest for digest in here if sent.has(tenant, digest)})
    others = [digest for digest in here if digest not in known]
    for first in range(0, len(others), ASKED_MAX):
        asked = {"digests": others[first : first + ASKED_MAX], "tenant": tenant}
        found: FilesInUse = await call.ask("consensus", Query("files_in_use", asked), ANSWER_S)
        known.update(found["digests"])
    return frozenset(known)


async def has_or_keep(call: RequestContext, digest: str, content: bytes | None) -> bool:
    """Keep the *content* that was sent under its *digest*, for its sender's tenant; without content: whether it is
    here for that.

    Raises BadRequest for content that is not of that digest, DiskFull, StorageError.
    """
    if content is None:
        return bool(await here_of(call, [digest]))
    store, least_bytes = call.app.blobs, call.app.settings.performance.min_free_bytes

    def keep() -> None:
        store.keep(digest, content, least_bytes)
        note_sent(call, digest)

    await call.app.in_pool(keep)
    return True


def note_sent(call: RequestContext, digest: str) -> None:
    """Note that the caller has sent it. Blocks. Raises StorageError."""
    if not call.who.is_cluster_admin:
        call.app.sent_files.note(tenant_of(call.who.user), digest)
