"""What a host does next for the cluster's trust, from what the ledger says and what it has itself.

For itself: take the newer bundle, the certificate that was made for it and the authority's key that was sealed for it;
ask for a certificate in time; tell the ledger what it has. For the others, if it has the authority's key: issue what
they ask for, send the key to voters that lack it, and take the next step of a rotation once all are ready.

No file, socket, clock or dice: the owner carries the steps out (``trust_maintainer.py``), and asks again. Each step is
refused by the ledger when somebody else was quicker, so that any number of hosts may do the same at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from actorgrid.actors.ledger.record_types import MemberRecord
from actorgrid.actors.ledger.trust_records import CertificateRequestRecord, TrustRecord
from actorgrid.errors import ActorGridError, CertificateRefused

from ..ledger.tables.trust import BUNDLE, carriers, holders, lacking_key, not_taken
from .authority import Authority
from .certificate_requests import HostRequest, check_request
from .certificates import HostIdentity, fingerprint, identify, pem, read_certificate
from .host_material import HostMaterial
from .keys import unseal_authority
from .trust_bundle import TrustBundle, read_bundle

Plain = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TrustView:
    """What is to be looked at. *authorities*: those whose key this host has, by generation. *listens*: where it is
    reached, by service; *addresses*: what its certificate should name. *voters*: host ids. *spare_key*: a key of its
    own whose certificate has not come."""

    host_id: str
    material: HostMaterial
    authorities: Mapping[int, Authority]
    listens: Mapping[str, str]
    addresses: tuple[str, ...]
    members: Mapping[str, MemberRecord]
    trust: Mapping[str, TrustRecord]
    voters: Collection[str]
    now_s: float
    spare_key: ec.EllipticCurvePrivateKey | None = None
    renew_now: bool = False
    """A person asked for a new certificate."""

    @property
    def own(self) -> TrustRecord | None:
        """This host's record of trust."""
        return self.trust.get(self.host_id)

    @property
    def bundle(self) -> TrustBundle:
        """The bundle that this host has."""
        return self.material.bundle


@dataclass(frozen=True, slots=True)
class TakeMaterial:
    """Keep this key, certificate and bundle, and use them for links from now on."""

    material: HostMaterial
    why: str


@dataclass(frozen=True, slots=True)
class TakeKey:
    """Keep the key of this authority."""

    authority: Authority


@dataclass(frozen=True, slots=True)
class ForgetKey:
    """Remove the key of an authority."""

    generation: int


@dataclass(frozen=True, slots=True)
class ReportMaterial:
    """Tell the ledger what this host has: the fields of ``report_trust``."""

    fields: Plain


@dataclass(frozen=True, slots=True)
class AnnounceAddress:
    """Tell the others where this host is reached now."""

    listens: dict[str, str]


@dataclass(frozen=True, slots=True)
class AskForCertificate:
    """Ask for a certificate."""

    csr: bytes
    why: str


@dataclass(frozen=True, slots=True)
class Issue:
    """Make the certificate that a member asked for under this number."""

    host_id: str
    number: int
    request: HostRequest


@dataclass(frozen=True, slots=True)
class Seal:
    """Send the key of an authority to the voter with this certificate."""

    host_id: str
    authority: Authority
    certificate: x509.Certificate
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Publish:
    """Put this bundle into the ledger."""

    bundle: TrustBundle
    why: str


@dataclass(frozen=True, slots=True)
class LogProblem:
    """Log that something in the ledger cannot be used; it stays as it is."""

    about: str
    error: ActorGridError


OwnStep = TakeMaterial | TakeKey | ForgetKey | AnnounceAddress | ReportMaterial | AskForCertificate | LogProblem
HolderStep = Issue | Seal | Publish | LogProblem


def own_steps(view: TrustView) -> list[OwnStep]:
    """The next step of this host for itself, one at most, after the problems it meets. Look again once it is done."""
    problems: list[OwnStep] = []
    for decide in (_take_bundle, _take_certificate, _take_key):
        try:
            step = decide(view)
        except ActorGridError as error:
            problems.append(LogProblem(_SUBJECTS[decide.__name__], error))
            continue
        if step is not None:
            return [*problems, step]
    forget = _needless_key(view)
    if forget is not None:
        return [*problems, ForgetKey(forget)]
    if view.members[view.host_id]["addresses"] != view.listens:
        return [*problems, AnnounceAddress(dict(view.listens))]
    told, record = facts(view), view.own
    if record is None or any(record.get(name) != value for name, value in told.items()):
        return [*problems, ReportMaterial(told)]
    why = _why_ask(view, record)
    if why is None:
        return problems
    return [*problems, AskForCertificate(view.material.renewal_request(view.addresses, view.spare_key), why)]


_SUBJECTS = {
    "_take_bundle": "the cluster's authorities",
    "_take_certificate": "the certificate made for this host",
    "_take_key": "the authority's key sent to this host",
}


def _take_bundle(view: TrustView) -> OwnStep | None:
    known = view.trust.get(BUNDLE)
    if known is None or known["bundle"]["version"] <= view.bundle.version:
        return None
    return TakeMaterial(view.material.trusting(read_bundle(known["bundle"])), "the cluster's authorities changed")


def _take_certificate(view: TrustView) -> OwnStep | None:
    issued = None if view.own is None else view.own["issued"]
    if issued is None or issued["certificate"] == pem(view.material.certificate):
        return None
    certificate = read_certificate(issued["certificate"].encode())
    spare = view.spare_key
    key = spare if spare is not None and fingerprint(spare) == fingerprint(certificate) else None
    return TakeMaterial(view.material.renewed(certificate, view.now_s, key), "a new certificate")


def _take_key(view: TrustView) -> OwnStep | None:
    for text, sealed in () if view.own is None else sorted(view.own["sealed"].items()):
        generation = int(text)
        if generation not in view.authorities:
            return TakeKey(unseal_authority(view.material.key, bytes.fromhex(sealed), view.bundle, generation))
    return None


def facts(view: TrustView) -> Plain:
    """The fields of ``report_trust``: what this host tells of itself."""
    identity = view.material.identity
    return {
        "host_id": view.host_id,
        "certificate": pem(view.material.certificate),
        "fingerprint": identity.fingerprint,
        "generation": identity.generation,
        "valid_until": identity.valid_until_s,
        "bundle_version": view.bundle.version,
        "keys": sorted(view.authorities),
    }


def holder_steps(view: TrustView) -> list[HolderStep]:
    """The steps that a host with the authority's key may take for the others now, in any order."""
    signing = view.bundle.signing.generation
    authority = view.authorities.get(signing)
    if authority is None:
        return []
    known = view.trust.get(BUNDLE)
    if known is None:
        return [Publish(view.bundle, "the ledger has none yet")]
    if known["bundle"]["version"] != view.bundle.version:
        return []  # first things first: this host has to take it
    steps: list[HolderStep] = []
    for host_id, record in view.trust.items():
        asked = record.get("request")
        if host_id in view.members and asked is not None:
            steps.append(_issue(view, host_id, asked))
    for each in view.authorities.values():
        if each.generation in states(view.bundle):
            steps += _seals(view, each)
    steps += _rotation(view)
    return steps


def addresses_of(member: MemberRecord) -> set[str]:
    """The addresses on which a member listens, without ports."""
    return {where.rpartition(":")[0].strip("[]") for where in member["addresses"].values()}


def states(bundle: TrustBundle) -> dict[int, str]:
    """The state of each authority by generation."""
    return {each.generation: each.state for each in bundle.authorities}


@dataclass(frozen=True, slots=True)
class RotationReadiness:
    """The hosts that keep a rotation from its next step; empty when none do, or no rotation is under way."""

    step: str = ""
    waits_for: list[str] = field(default_factory=list)


def rotation(view: TrustView) -> RotationReadiness:
    """The state of a rotation of the authority."""
    now = states(view.bundle)
    behind = not_taken(view.members, view.trust, view.bundle.version)
    for generation, state in now.items():
        if state == "waiting":
            keyless = lacking_key(view.trust, generation, among=[id for id in view.voters if id in view.members])
            return RotationReadiness("switch", sorted({*behind, *keyless}))
        if state == "accepted":
            return RotationReadiness("retire", sorted({*behind, *carriers(view.members, view.trust, generation)}))
    return RotationReadiness()


def _rotation(view: TrustView) -> list[HolderStep]:
    found = rotation(view)
    if not found.step or found.waits_for:
        return []
    if found.step == "switch":
        return [Publish(view.bundle.switch(), "every host knows the next authority, every voter has its key")]
    old = next(generation for generation, state in states(view.bundle).items() if state == "accepted")
    return [Publish(view.bundle.retire(old), "no host has a certificate of the old authority any more")]


def _needless_key(view: TrustView) -> int | None:
    """A key to forget: of an authority that is retired, or, on a host that votes no more, once all who do have it."""
    known = states(view.bundle)
    for generation in sorted(view.authorities):
        if generation not in known:
            return generation
        others = [id for id in view.voters if id in view.members]
        if view.host_id not in others and others and not lacking_key(view.trust, generation, others):
            return generation
    return None


def _why_ask(view: TrustView, record: TrustRecord) -> str | None:
    if record["request"] is not None or record["issued"] is not None:
        return None
    identity = view.material.identity
    if view.spare_key is not None:
        return "a new key"
    if view.renew_now:
        return "it was told to"
    if identity.generation != view.bundle.signing.generation:
        return "another authority signs"
    if set(view.material.addresses) != set(view.addresses):
        return f"this host is at {', '.join(view.addresses)} now"
    return "the certificate's time comes to its end" if view.material.renewal_due(view.now_s) else None


def _issue(view: TrustView, host_id: str, asked: CertificateRequestRecord) -> HolderStep:
    told = addresses_of(view.members[host_id])
    taken = {address: id for id, member in view.members.items() if id != host_id for address in addresses_of(member)}
    try:
        if not set(asked["addresses"]) <= told:
            raise CertificateRefused(
                "the request names an address that the host has not told",
                asked=", ".join(asked["addresses"])[:200],
                found=", ".join(sorted(told)),
            )
        csr = bytes.fromhex(asked["csr"])
        request = check_request(csr, view.bundle.cluster_id, host_id, asked["addresses"], taken)
    except (ActorGridError, ValueError) as error:
        refusal = error if isinstance(error, ActorGridError) else CertificateRefused("the request is no hex")
        return LogProblem(f"what host {host_id} asks for", refusal)
    return Issue(host_id, asked["id"], request)


def _seals(view: TrustView, authority: Authority) -> list[HolderStep]:
    generation = authority.generation
    steps: list[HolderStep] = []
    has = holders(view.trust, generation)
    for host_id in view.voters:
        record, member = view.trust.get(host_id), view.members.get(host_id)
        if member is None or record is None or not record["certificate"] or host_id in has:
            continue
        if str(generation) in record["sealed"]:
            continue
        try:
            certificate = read_certificate(record["certificate"].encode())
            identity = view.bundle.check_host(certificate, view.now_s)
            _check_reader(identity, host_id, member)
        except ActorGridError as error:
            steps.append(LogProblem(f"the certificate of host {host_id}", error))
            continue
        steps.append(Seal(host_id, authority, certificate, identity.fingerprint))
    return steps


def _check_reader(identity: HostIdentity, host_id: str, member: MemberRecord) -> None:
    if identity.host_id != host_id or identity.fingerprint not in member["fingerprints"]:
        raise CertificateRefused(
            "the certificate is not the member's",
            asked=f"host {host_id}",
            found=f"host {identity.host_id}, key {identity.fingerprint}",
        )


def issued_fields(certificate: x509.Certificate) -> Plain:
    """The fields of ``issue_certificate`` for a certificate."""
    return {"certificate": pem(certificate), "fingerprint": identify(certificate).fingerprint}
