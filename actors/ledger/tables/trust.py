"""What the cluster's hosts have to know of its trust: the bundle of authorities, and of each member its certificate,
which of the authorities' keys it has, what it asks for and what was made for it.

Nothing here is secret: certificates and requests are public, and an authority's key is here only sealed for one host,
until that host has opened it. No certificate is read here: two versions of a library could judge one differently, and
the ledger's replicas must not. Whoever proposes has checked what it proposes, whoever takes something from here checks
it again (``security/trust_policy.py``); the ledger holds the order of the steps.

Bounds: one record a member; 2 authorities; texts as ``field_checks.py`` has them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

from actorgrid.actors.ledger.answers import BundleAnswer, CertificateRequestAnswer, MemberTrustAnswer
from actorgrid.actors.ledger.commands import (
    ChangeMember,
    IssueCertificate,
    PublishBundle,
    ReportTrust,
    RequestCertificate,
    SealAuthority,
)
from actorgrid.actors.ledger.entry import EntryContext, applies
from actorgrid.actors.ledger.record_types import MemberRecord
from actorgrid.actors.ledger.trust_records import BundleRecord, CertificateRequestRecord, IssuedRecord, TrustRecord
from actorgrid.errors import NotFound, StaleToken, WrongState

from .members import Members

BUNDLE = "@bundle"
"""The id of the bundle's record among those of hosts; no host is called so."""
HOSTS_NAMED_MAX = 5


class Trust:
    """*changed* is told of each record that is new, other or gone: its id, the record or ``None``, and a word.

    A host's record is {"host_id", "certificate" (PEM), "fingerprint", "generation", "valid_until", "bundle_version",
    "keys" (generations), "sealed" {generation: hex}, "request", "issued"}.
    """

    def __init__(self, members: Members, changed: Callable[[str, TrustRecord | None, str], None]) -> None:
        self.records: dict[str, TrustRecord] = {}
        self._members = members
        self._changed = changed

    @property
    def bundle(self) -> BundleRecord | None:
        """The bundle as plain values; ``None`` before the first host has told it."""
        record = self.records.get(BUNDLE)
        return None if record is None else record["bundle"]

    @applies(PublishBundle)
    def publish(self, command: PublishBundle, _entry: EntryContext) -> BundleAnswer:
        """Take the next bundle, one step from the one that is known.

        Raises StaleToken when another step was quicker, and WrongState for a step that members are not ready for.
        """
        new, old = command.bundle, self.bundle
        if new["cluster_id"] != self._members.cluster_id:
            raise WrongState("the bundle is another cluster's", asked=new["cluster_id"], found=self._members.cluster_id)
        if old is not None:
            if new["version"] != old["version"] + 1:
                raise StaleToken(
                    "the trust bundle is another by now",
                    asked=f"version {new['version']}",
                    found=f"version {old['version']}",
                    hint="look at it, and decide again: actorgrid ca show",
                )
            self._check_step(states_of(old), states_of(new), old["version"])
        self._put(BUNDLE, {"bundle": new}, "changed")
        return {"version": new["version"]}

    @applies(ReportTrust)
    def report(self, command: ReportTrust, _entry: EntryContext) -> MemberTrustAnswer:
        """What a member has now: its certificate, the bundle, the keys. Raises NotFound, or WrongState for a
        certificate that the ledger does not know."""
        host_id, fingerprint = command.host_id, command.fingerprint
        member = self._member(host_id)
        if fingerprint not in member["fingerprints"]:
            raise WrongState(
                f"host {host_id} has a certificate that the ledger does not know",
                asked=fingerprint,
                found=", ".join(member["fingerprints"]),
            )
        names = ("host_id", "certificate", "fingerprint", "generation", "valid_until", "bundle_version", "keys")
        before = self._record(host_id)
        record = cast("TrustRecord", {**before, **{name: getattr(command, name) for name in names}})
        # What was sealed for another key of its does not open any more: it is sealed anew.
        sealed = before["sealed"] if fingerprint == before["fingerprint"] else {}
        record["sealed"] = {
            generation: text for generation, text in sealed.items() if int(generation) not in record["keys"]
        }
        issued = before["issued"]
        if issued is not None and issued["certificate"] == record["certificate"]:
            record["issued"] = None
            # Its links have used the new key since before it said so: the old one is not believed any more.
            self._members.keep_only(host_id, fingerprint)
        if record != before:
            self._put(host_id, record, "")
        return {"host_id": host_id}

    @applies(RequestCertificate)
    def request(self, command: RequestCertificate, entry: EntryContext) -> CertificateRequestAnswer:
        """Keep a member's request for a certificate; a later one takes the place of an earlier one. Raises NotFound."""
        self._member(command.host_id)
        asked: CertificateRequestRecord = {"id": entry.index, "csr": command.csr, "addresses": command.addresses}
        record: TrustRecord = {**self._record(command.host_id), "request": asked, "issued": None}
        self._put(command.host_id, record, "certificate requested")
        return {"request": entry.index}

    @applies(IssueCertificate)
    def issue(self, command: IssueCertificate, entry: EntryContext) -> MemberTrustAnswer:
        """The certificate that was asked for; its key is believed from now on. Raises NotFound, or StaleToken when it
        was made for another request than the one that waits."""
        host_id = command.host_id
        self._member(host_id)
        record = self._record(host_id)
        waits = record["request"]
        if waits is None or waits["id"] != command.request:
            raise StaleToken(
                f"host {host_id} does not wait for that certificate",
                asked=f"request {command.request}",
                found="no request" if waits is None else f"request {waits['id']}",
            )
        self._members.change(ChangeMember(host_id, fingerprint=command.fingerprint), entry)
        issued: IssuedRecord = {"certificate": command.certificate}
        self._put(host_id, {**record, "request": None, "issued": issued}, "certificate issued")
        return {"host_id": host_id}

    @applies(SealAuthority)
    def seal(self, command: SealAuthority, _entry: EntryContext) -> MemberTrustAnswer:
        """Keep an authority's key sealed for one member.

        Raises NotFound, or StaleToken when that has another key by now.
        """
        host_id, generation = command.host_id, command.generation
        self._member(host_id)
        record = self._record(host_id)
        if record["fingerprint"] != command.fingerprint:
            raise StaleToken(
                f"host {host_id} has another certificate by now",
                asked=command.fingerprint,
                found=record["fingerprint"] or "none told yet",
            )
        if generation not in record["keys"]:
            sealed = {**record["sealed"], str(generation): command.sealed}
            self._put(host_id, {**record, "sealed": sealed}, "authority's key sent")
        return {"host_id": host_id, "generation": generation}

    def forget(self, host_id: str) -> None:
        """Remove the record of a member that was removed."""
        if self.records.pop(host_id, None) is not None:
            self._changed(host_id, None, "")

    def load(self, items: list[list[Any]]) -> None:
        """Load what a snapshot held; for a new, empty object."""
        self.records.update((id, record) for id, record in items)

    def _check_step(self, old: Mapping[int, str], new: Mapping[int, str], version: int) -> None:
        behind = not_taken(self._members.records, self.records, version)
        signs, signed = signing(new), signing(old)
        if signs != signed:
            keyless = lacking_key(self.records, signs, among=holders(self.records, signed))
            _refuse_while({*behind, *keyless}, "not every host is ready for the next authority")
        for generation in old.keys() - new.keys():
            if old[generation] != "waiting":
                late = [*behind, *carriers(self._members.records, self.records, generation)]
                _refuse_while(late, f"hosts still carry certificates of generation {generation}")

    def _member(self, host_id: str) -> MemberRecord:
        member = self._members.records.get(host_id)
        if member is None:
            raise NotFound(f"host {host_id} is no member of the cluster", asked=host_id)
        return member

    def _record(self, host_id: str) -> TrustRecord:
        return self.records.get(host_id) or {
            "host_id": host_id,
            "certificate": "",
            "fingerprint": "",
            "generation": 0,
            "valid_until": 0.0,
            "bundle_version": 0,
            "keys": [],
            "sealed": {},
            "request": None,
            "issued": None,
        }

    def _put(self, id: str, record: TrustRecord, word: str) -> None:
        self.records[id] = record
        self._changed(id, record, word)


# -- what the records say


def states_of(bundle: BundleRecord) -> dict[int, str]:
    """The state of each authority by generation: waiting, signing or accepted."""
    return {int(each["generation"]): str(each["state"]) for each in bundle["authorities"]}


def signing(states: Mapping[int, str]) -> int:
    """The generation of the authority that issues certificates."""
    return next(generation for generation, state in states.items() if state == "signing")


def holders(trust: Mapping[str, TrustRecord], generation: int) -> list[str]:
    """The hosts that have the key of a generation."""
    return [id for id, record in trust.items() if id != BUNDLE and generation in record["keys"]]


def lacking_key(trust: Mapping[str, TrustRecord], generation: int, among: Collection[str]) -> list[str]:
    """Of these hosts, those that do not have the key of a generation."""
    has = set(holders(trust, generation))
    return [host_id for host_id in among if host_id not in has]


def not_taken(members: Mapping[str, MemberRecord], trust: Mapping[str, TrustRecord], version: int) -> list[str]:
    """The members that have not told yet that they have the bundle of that version."""
    return [id for id in members if trust.get(id, {"bundle_version": 0})["bundle_version"] < version]


def carriers(members: Mapping[str, MemberRecord], trust: Mapping[str, TrustRecord], generation: int) -> list[str]:
    """The members whose certificate is from a generation, or not known."""
    return [id for id in members if trust.get(id, {"generation": 0})["generation"] in (0, generation)]


def _refuse_while(hosts: Collection[str], message: str) -> None:
    if hosts:
        named = sorted(set(hosts))
        more = ", ..." if len(named) > HOSTS_NAMED_MAX else ""
        raise WrongState(
            message,
            found=f"{len(named)}: {', '.join(named[:HOSTS_NAMED_MAX])}{more}",
            hint="start them, or let them leave, and try again",
        )
