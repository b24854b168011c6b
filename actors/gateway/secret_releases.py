"""Secrets on their way to the work that they are for: opened where the keys are, audited, and given to one host.

A host that has the authority's key looks in its own copy of the ledger whether the attempt is granted to the host that
asks, and whether its job's user has that secret. Only then it opens it, seals it to that host's certificate, and has
the audit log on the disk before it answers. Values are in no message: what one host sends another is sealed, and the
door writes the files of its own host itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from time import time
from typing import TYPE_CHECKING

from actorgrid.access import Role, tenant_of
from actorgrid.errors import (
    ActorGridError,
    CallTimeout,
    DependencyFailed,
    HostUnreachable,
    NotFound,
    NotSupported,
)
from actorgrid.secret_words import wish_of
from actorgrid.supervisors.runtime import Waiter
from actorgrid.supervisors.server import Server

from ..ledger.client import LedgerClient
from ..ledger.commands import ResealSecret
from ..ledger.messages import Query
from ..ledger.query_answers import SecretRecords
from ..ledger.record_types import JobRecord
from ..ledger.secret_records import SecretRecord, secrets_for
from ..ledger.tables.trust import BUNDLE, holders
from ..links.messages import AskHost
from ..security.audit_records import AuditFacts

if TYPE_CHECKING:
    from ..security.secret_boxes import SecretBoxes

KEPT_S = 5.0
"""So long a release waits for its audit record to be on the disk."""
ASK_S = 10.0
HOLDERS_ASKED = 5
Tell = Callable[[AuditFacts, Callable[[], None]], bool]
"""``False``: the door is not up yet."""


class SecretReleases:
    """Of one host's door. *audit*: has its log tell of something, and calls back once that is on the disk."""

    def __init__(self, server: Server, ledger: LedgerClient, audit: Tell) -> None:
        self._server, self._ledger, self._audit = server, ledger, audit
        self._kept_boxes: SecretBoxes | None = None
        self._resealing = False
        self.released_total = 0

    @property
    def boxes(self) -> SecretBoxes:
        """What seals and opens; loaded at the first secret: cryptography takes megabytes."""
        if self._kept_boxes is None:
            from ..security.secret_boxes import SecretBoxes

            self._kept_boxes = SecretBoxes(self._server.host.paths.security_dir, str(self._server.host.host_id))
        return self._kept_boxes

    async def place(self, attempt_id: str, folder: Path) -> list[str]:
        """Write the secrets of an attempt of this host into *folder*, which is made. Raises as ``PlaceSecrets``."""
        values = await self._values(attempt_id)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, value in values.items():
            (folder / name).unlink(missing_ok=True)  # of an earlier try to begin
            fd = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o400)
            with os.fdopen(fd, "wb") as file:
                file.write(value)
        return list(values)

    async def release(self, attempt_id: str, host_id: str) -> dict[str, str]:
        """The secrets of an attempt for another host that runs it. Raises as ``ReleaseSecrets``."""
        values = await self._open(attempt_id, host_id)
        if values is None:
            raise NotSupported("this host has no key that opens the secret", hint="voters of the cluster have it")
        certificate = self._ledger.trust.get(host_id, {}).get("certificate", "")
        if not certificate:
            raise NotFound("the host has not told its certificate yet", asked=host_id)
        return {name: self.boxes.for_host(value, certificate, attempt_id, name) for name, value in values.items()}

    async def _values(self, attempt_id: str) -> dict[str, bytes]:
        own = await self._open(attempt_id, str(self._server.host.host_id))
        if own is not None:
            return own
        trust = self._ledger.trust
        bundle = trust.get(BUNDLE, {}).get("bundle")
        generations = [each["generation"] for each in bundle["authorities"]] if bundle else []
        asked = list(dict.fromkeys(id for generation in reversed(generations) for id in holders(trust, generation)))
        failure: ActorGridError = HostUnreachable("no host that can open the secret is known yet", asked=attempt_id)
        for host_id in [id for id in asked if id != self._server.host.host_id][:HOLDERS_ASKED]:
            try:
                sealed = await self._server.call(
                    "links", AskHost(host_id, "release_secrets", {"attempt_id": attempt_id}, ASK_S), ASK_S + 1
                )
            except DependencyFailed:
                raise
            except ActorGridError as error:
                failure = error
                continue
            return {
                name: self.boxes.from_holder(str(box), attempt_id, name)
                for name, box in sealed.items()
                if name in self._wanted(attempt_id)
            }
        if isinstance(failure, NotSupported):
            raise HostUnreachable("no host could open the secret", asked=attempt_id) from failure
        raise failure

    def _job_of(self, attempt_id: str, host_id: str) -> JobRecord:
        """The job of an attempt that is granted to that host. Raises NotFound: it is not, as far as is known here."""
        grant = self._ledger.allocations.get(attempt_id)
        job = None if grant is None else self._ledger.jobs.get(str(grant["owner"].get("job_id")))
        if grant is None or job is None or grant["host"] != host_id:
            raise NotFound("that attempt does not run there, as far as this host knows", asked=attempt_id[:100])
        return job

    def _wanted(self, attempt_id: str) -> list[str]:
        job = self._job_of(attempt_id, str(self._server.host.host_id))
        return [wish_of(text)[0] for text in job.get("secrets", ())]

    async def _open(self, attempt_id: str, host_id: str) -> dict[str, bytes] | None:
        """The values of an attempt's secrets, each told to the audit log; ``None``: this host cannot open them all."""
        job = self._job_of(attempt_id, host_id)
        user = str(job["user_id"])
        wished = [wish_of(text)[0] for text in job.get("secrets", ())]
        values: dict[str, bytes] = {}
        for name, record in secrets_for(await self._records(), user, wished).items():
            if record is None:
                await self._tell(user, attempt_id, host_id, name, 404, "NotFound")
                raise DependencyFailed(
                    f"{user} has no secret {name}",
                    asked=name,
                    hint="actorgrid secret list shows which there are; its owner sets it --shared for the tenant",
                )
            value = self.boxes.open(record)
            if value is None:
                return None
            values[name] = value
        for name in values:
            await self._tell(user, attempt_id, host_id, name, 200, "done")
            self.released_total += 1
        return values

    async def _records(self) -> list[SecretRecord]:
        found: SecretRecords = await self._server.call("consensus", Query("secrets"), ASK_S)
        return found["secrets"]

    async def _tell(self, user: str, attempt_id: str, host_id: str, name: str, status: int, outcome: str) -> None:
        """Have the audit log tell of a release, on the disk. Raises CallTimeout: nothing is released untold."""
        kept = Waiter()
        late = CallTimeout("the audit log did not take the release of a secret", asked=name)
        told = AuditFacts(
            user,
            attempt_id,
            Role.SERVICE.value,
            tenant_of(user),
            "" if host_id == self._server.host.host_id else host_id,
            "RELEASE",
            "/secrets/{name}",
            f"/secrets/{name}",
            status,
            outcome,
        )
        if not self._audit(told, lambda: kept.set(None)):
            raise HostUnreachable("the door of this host is not up yet", asked=name)
        timer = self._server.runtime.after(KEPT_S, lambda: kept.fail(late))
        try:
            await kept
        finally:
            timer.cancel()

    # -- keys that change

    def look(self) -> None:
        """Seal what is sealed to other keys than there are now; only the host that leads does."""
        if self._ledger.leads and not self._resealing:
            self._resealing = True
            self._server.spawn(self._reseal())

    async def _reseal(self) -> None:
        try:
            for record in await self._records():
                boxes = self.boxes.resealed(record)
                if boxes is not None:
                    command = ResealSecret(
                        tenant_of(record["user_id"]), record["name"], record["set_at"], boxes, at=time()
                    )
                    await self._ledger.propose(command)
        except ActorGridError as error:  # the next look does it
            self._server.log.info("secrets are not sealed to the new keys yet: %s", error)
        finally:
            self._resealing = False
