"""The secrets of all tenants, sealed. Part of the state; what opens them is not.

Bounds: 100 secrets and 256 KiB of sealed values in a tenant, 1,000 and 4 MiB in all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from actorgrid.access import tenant_of
from actorgrid.errors import NotFound, QueueFull, WrongState

from ..answers import SecretAnswer
from ..commands import RemoveSecret, ResealSecret, SetSecret
from ..entry import EntryContext, applies
from ..secret_records import SecretRecord, key_of_secret, secret_key

OF_A_TENANT_MAX, IN_ALL_MAX = 100, 1_000
BYTES_OF_A_TENANT_MAX, BYTES_IN_ALL_MAX = 256 * 1024, 4 * 2**20


class Secrets:
    """The secrets by tenant and name. *changed* is told of each that is other or gone, with a word for people."""

    def __init__(self, changed: Callable[[str, SecretRecord | None, str], None]) -> None:
        self.records: dict[str, SecretRecord] = {}
        self._changed = changed

    def load(self, records: Iterable[SecretRecord]) -> None:
        """Load what a snapshot held; for a new, empty object."""
        self.records.update((key_of_secret(record), record) for record in records)

    @applies(SetSecret)
    def set(self, command: SetSecret, _entry: EntryContext) -> SecretAnswer:
        """Set a secret. Raises WrongState for a name that is another user's, QueueFull at the bounds."""
        secret = command.secret
        tenant, key = tenant_of(secret["user_id"]), key_of_secret(secret)
        before = self.records.get(key)
        if before is not None and before["user_id"] != secret["user_id"]:
            raise WrongState(
                "a secret of that name is another user's",
                asked=secret["name"],
                hint="take another name, or have it removed",
            )
        others = [record for other, record in self.records.items() if other != key]
        own = [record for record in others if tenant_of(record["user_id"]) == tenant]
        for records, most, bytes_most, where in (
            (own, OF_A_TENANT_MAX, BYTES_OF_A_TENANT_MAX, f"tenant {tenant} has"),
            (others, IN_ALL_MAX, BYTES_IN_ALL_MAX, "the cluster has"),
        ):
            if len(records) >= most or sum(map(_size, records)) + _size(secret) > bytes_most:
                raise QueueFull(
                    f"{where} no room for another secret",
                    asked=secret["name"],
                    found=f"{most} secrets and {bytes_most // 1024} KiB are the most",
                    hint="remove some: actorgrid secret list",
                )
        self._put(key, secret, "set")
        return {"name": secret["name"], "tenant": tenant}

    @applies(ResealSecret)
    def reseal(self, command: ResealSecret, _entry: EntryContext) -> SecretAnswer:
        """Put other boxes in the place of those there are. Raises NotFound."""
        key, record = self._found(command.tenant, command.name)
        if record["set_at"] == command.set_at:
            self._put(key, {**record, "boxes": command.boxes}, "")
        return {"name": record["name"], "tenant": command.tenant}

    @applies(RemoveSecret)
    def remove(self, command: RemoveSecret, _entry: EntryContext) -> SecretAnswer:
        """Forget a secret. Raises NotFound."""
        key, record = self._found(command.tenant, command.name)
        del self.records[key]
        self._changed(key, None, "removed")
        return {"name": record["name"], "tenant": command.tenant}

    def _found(self, tenant: str, name: str) -> tuple[str, SecretRecord]:
        record = self.records.get(secret_key(tenant, name))
        if record is None:
            raise NotFound("there is no such secret", asked=name[:100], hint="actorgrid secret list")
        return key_of_secret(record), record

    def _put(self, key: str, record: SecretRecord, word: str) -> None:
        self.records[key] = record
        self._changed(key, record, word)


def _size(record: SecretRecord) -> int:
    """The bytes of a secret's sealed values: the largest counts, as others are there for a while alone."""
    return max(len(text) for text in record["boxes"].values()) // 2
