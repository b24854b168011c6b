"""The trust bundle: which authorities a cluster accepts, and how one generation takes over from another.

    one signing  --introduce-->  + one waiting  --switch-->  one accepted + one signing  --retire-->  one signing

*introduce* has every host accept the next generation before it signs anything; *switch* lets it sign; *retire* ends
the old one when no host carries a certificate of it any more. Who proposes a step says which hosts are not ready for
it, and the step is refused while there are any. Each step gives a new bundle with a higher version.

The two generations endorse each other, so a host that knows either can tell that the other is no stranger: one whose
join token names the old authority, or one that was away while a step was made. Endorsements are signatures
(``authority.py``); a bundle whose authorities are not all connected by them to one already known is refused.

A bundle holds nothing secret. It is kept in the ledger, so its steps are pure and its plain form is JSON values.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from cryptography import x509

from actorgrid.actors.ledger.names import check_id
from actorgrid.actors.ledger.trust_records import BundleRecord
from actorgrid.errors import CertificateRefused, KeyUnusable, WrongCluster, WrongState

from .authority import ROTATION_LEFT_S, is_endorsed
from .certificates import HostIdentity, check_authority, check_host, fingerprint, pem, read_certificate

FORMAT = 1
AUTHORITIES_MAX = 2
HOSTS_NAMED_MAX = 5
"""At most so many hosts are named in a refusal."""

State = Literal["waiting", "signing", "accepted"]
_STATES: tuple[State, ...] = ("waiting", "signing", "accepted")


@dataclass(frozen=True, slots=True)
class TrustedAuthority:
    """One authority of a bundle. ``endorsements``: by generation of the endorser, in hex."""

    generation: int
    state: State
    certificate: x509.Certificate
    endorsements: dict[int, str] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of its public key."""
        return fingerprint(self.certificate)


@dataclass(frozen=True, slots=True)
class TrustBundle:
    """The authorities of one cluster, at most two, by generation; exactly one of them signs."""

    cluster_id: str
    version: int
    authorities: tuple[TrustedAuthority, ...]

    @property
    def signing(self) -> TrustedAuthority:
        """The authority that issues certificates."""
        return next(each for each in self.authorities if each.state == "signing")

    @property
    def certificates(self) -> tuple[x509.Certificate, ...]:
        """The certificates of all authorities whose hosts are accepted."""
        return tuple(each.certificate for each in self.authorities)

    @property
    def pem(self) -> str:
        """The certificates of all authorities as text (PEM), for TLS and for clients."""
        return "".join(pem(certificate) for certificate in self.certificates)

    def find(self, generation: int) -> TrustedAuthority:
        """The authority of that generation. Raises WrongState when the bundle has none."""
        for each in self.authorities:
            if each.generation == generation:
                return each
        known = ", ".join(str(each.generation) for each in self.authorities)
        raise WrongState("no authority of that generation is trusted", asked=str(generation), found=known)

    def rotation_due(self, now_s: float) -> bool:
        """Whether the signing authority has less than a year left."""
        return self.signing.certificate.not_valid_after_utc.timestamp() - now_s < ROTATION_LEFT_S

    def check_host(self, certificate: x509.Certificate, now_s: float) -> HostIdentity:
        """Whom the certificate names, if it is valid here and now. Raises CertificateRefused, WrongCluster."""
        return check_host(certificate, self.certificates, self.cluster_id, now_s)

    def introduce(self, certificate: x509.Certificate, by_signing: bytes, by_new: bytes) -> TrustBundle:
        """Accept the next generation, which signs nothing yet. The two bytes are the endorsements of each by the other.

        Raises WrongState while another rotation is under way or for another generation than the next,
        CertificateRefused for a certificate or endorsement that is not right.
        """
        old = self.signing
        if len(self.authorities) >= AUTHORITIES_MAX:
            raise WrongState(
                "a rotation of the authority is under way",
                found=", ".join(f"{each.generation} {each.state}" for each in self.authorities),
                hint="finish it: switch, then retire the old one",
            )
        generation = check_authority(certificate, self.cluster_id)
        if generation != old.generation + 1:
            raise WrongState(
                "not the next generation of the authority", asked=str(generation), found=f"{old.generation} signs"
            )
        if not is_endorsed(certificate, old.certificate, by_signing) or not is_endorsed(
            old.certificate, certificate, by_new
        ):
            raise CertificateRefused("the two generations do not endorse each other", asked=f"generation {generation}")
        kept = replace(old, endorsements={**old.endorsements, generation: by_new.hex()})
        new = TrustedAuthority(generation, "waiting", certificate, {old.generation: by_signing.hex()})
        return replace(self, version=self.version + 1, authorities=(kept, new))

    def switch(self, not_ready: Collection[str] = ()) -> TrustBundle:
        """Let the waiting authority sign. *not_ready*: hosts that do not accept it yet, or voters without its key.

        Raises WrongState while there are any, or when none waits.
        """
        if all(each.state != "waiting" for each in self.authorities):
            raise WrongState("no authority waits to sign", hint="introduce one first")
        _refuse_while(not_ready, "not every host is ready for the next authority")
        states: dict[State, State] = {"waiting": "signing", "signing": "accepted", "accepted": "accepted"}
        changed = tuple(replace(each, state=states[each.state]) for each in self.authorities)
        return replace(self, version=self.version + 1, authorities=changed)

    def retire(self, generation: int, carriers: Collection[str] = ()) -> TrustBundle:
        """Accept nothing of that generation any more. *carriers*: hosts with a certificate of it.

        One that only waits may be retired too: so is a rotation called off. Raises WrongState while there are any
        carriers, and for the authority that signs.
        """
        if self.find(generation).state == "signing":
            raise WrongState(
                "the authority that signs cannot be retired",
                asked=f"generation {generation}",
                hint="introduce the next one and switch to it first",
            )
        _refuse_while(carriers, f"hosts still carry certificates of generation {generation}")
        kept = tuple(each for each in self.authorities if each.generation != generation)
        return replace(self, version=self.version + 1, authorities=kept)

    def check_connected(self, known: Collection[str]) -> None:
        """Raises CertificateRefused unless endorsements lead from the *known* fingerprints to every authority."""
        trusted = [each for each in self.authorities if each.fingerprint in known]
        strangers = [each for each in self.authorities if each not in trusted]
        for _ in range(len(strangers)):
            for each in list(strangers):
                if any(_endorses(friend, each) for friend in trusted):
                    strangers.remove(each)
                    trusted.append(each)
        if strangers:
            raise CertificateRefused(
                "the cluster shows an authority that is not the one we know, nor endorsed by it",
                asked=", ".join(sorted(known))[:200],
                found=", ".join(each.fingerprint for each in strangers),
                hint="check the address; if the authority was rotated since, ask for a new join token",
            )

    def followed_by(self, offered: TrustBundle) -> TrustBundle:
        """The bundle that a host keeps which has this one and is offered another: the newer of the two.

        Raises WrongCluster, or CertificateRefused when the newer one is not connected to this one.
        """
        if offered.cluster_id != self.cluster_id:
            raise WrongCluster("the bundle is another cluster's", asked=self.cluster_id, found=offered.cluster_id)
        if offered.version <= self.version:
            return self
        offered.check_connected([each.fingerprint for each in self.authorities])
        return offered

    def to_plain(self) -> BundleRecord:
        """JSON values, read back by :func:`read_bundle`."""
        return {
            "format": FORMAT,
            "cluster_id": self.cluster_id,
            "version": self.version,
            "authorities": [
                {
                    "generation": each.generation,
                    "state": each.state,
                    "certificate": pem(each.certificate),
                    "endorsements": {str(by): text for by, text in sorted(each.endorsements.items())},
                }
                for each in self.authorities
            ],
        }


def first_bundle(certificate: x509.Certificate, cluster_id: str) -> TrustBundle:
    """The bundle of a new cluster, or of one whose old authorities are no longer trusted at all.

    Raises CertificateRefused or WrongCluster.
    """
    generation = check_authority(certificate, cluster_id)
    return TrustBundle(cluster_id, 1, (TrustedAuthority(generation, "signing", certificate),))


def read_bundle(plain: Any) -> TrustBundle:
    """The bundle that :meth:`TrustBundle.to_plain` wrote. Raises KeyUnusable, CertificateRefused, WrongCluster."""
    try:
        if plain["format"] != FORMAT:
            raise KeyUnusable(
                "the trust bundle is of another format",
                asked=str(FORMAT),
                found=str(plain["format"])[:40],
                hint="this host runs an older actorgrid than the one that wrote it: upgrade it",
            )
        cluster_id = check_id("cluster", str(plain["cluster_id"]))
        version, rows = plain["version"], plain["authorities"]
        if type(version) is not int or version < 1 or not isinstance(rows, list) or len(rows) > AUTHORITIES_MAX:
            raise ValueError("version or authorities")
        authorities = tuple(_read_authority(row, cluster_id) for row in rows)
        if [each.state for each in authorities].count("signing") != 1:
            raise ValueError("not one signing authority")
        if sorted({each.generation for each in authorities}) != [each.generation for each in authorities]:
            raise ValueError("generations out of order")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise KeyUnusable(
            f"the trust bundle is damaged: {str(error)[:120]}", hint="take it from another host, or join again"
        ) from error
    return TrustBundle(cluster_id, version, authorities)


def _read_authority(row: dict[str, Any], cluster_id: str) -> TrustedAuthority:
    certificate = read_certificate(str(row["certificate"]).encode())
    generation = check_authority(certificate, cluster_id)
    endorsements = {int(by): str(text) for by, text in row["endorsements"].items()}
    if row["generation"] != generation or row["state"] not in _STATES or len(endorsements) > AUTHORITIES_MAX:
        raise ValueError("generation, state or endorsements")
    if any(len(bytes.fromhex(text)) > 128 for text in endorsements.values()):
        raise ValueError("endorsement")
    return TrustedAuthority(generation, row["state"], certificate, endorsements)


def _endorses(friend: TrustedAuthority, stranger: TrustedAuthority) -> bool:
    text = stranger.endorsements.get(friend.generation)
    return text is not None and is_endorsed(stranger.certificate, friend.certificate, bytes.fromhex(text))


def _refuse_while(hosts: Collection[str], message: str) -> None:
    if hosts:
        named = ", ".join(sorted(hosts)[:HOSTS_NAMED_MAX])
        raise WrongState(
            message,
            found=f"{len(hosts)}: {named}" + (", ..." if len(hosts) > HOSTS_NAMED_MAX else ""),
            hint="start them, or let them leave, and try again",
        )
