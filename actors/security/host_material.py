"""What a host keeps of the cluster's trust: its key, its certificate, and the bundle of authorities.

    DATA_DIR/security/        0700
      host.pem                0600, the host's key and certificate: one file, so that the two always fit
      bundle.json             the trust bundle, with the cluster's id
      joining.key             the key of a join that is under way, or a new one whose certificate has not come yet
      authority-N.key         voters only, wrapped (keys.py)
      wrap.key                what wraps them, unless it is kept elsewhere

Nothing is used before it is checked: permissions, form, that key, certificate and bundle belong together, that the
certificate is in its time.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from actorgrid.actors.files.private_files import read_private, write_private
from actorgrid.errors import CertificateRefused, KeyUnusable, WrongCluster

from .authority import Authority
from .certificate_requests import check_request, make_request
from .certificates import HostIdentity, addresses, fingerprint, identify, pem, read_certificate
from .keys import key_bytes, new_private_key, read_key
from .trust_bundle import TrustBundle, read_bundle

HOST_FILE, BUNDLE_FILE, JOINING_FILE, WRAP_FILE = "host.pem", "bundle.json", "joining.key", "wrap.key"
_RENEWAL_SHARE = 2 / 3
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class HostMaterial:
    """A host's key, certificate and bundle, as they belong together. Its key is not shown when printed."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    bundle: TrustBundle

    def __repr__(self) -> str:
        identity = self.identity
        return f"HostMaterial({identity.cluster_id!r}, {identity.host_id!r}, bundle version {self.bundle.version})"

    @property
    def identity(self) -> HostIdentity:
        """The identity that the certificate names."""
        return identify(self.certificate)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses that the certificate names beside the host."""
        return addresses(self.certificate)

    @property
    def pem(self) -> bytes:
        """Key and certificate as one text, as TLS loads them."""
        key = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return key + pem(self.certificate).encode()

    def check(self, now_s: float) -> HostIdentity:
        """Whom the certificate names, when all belongs together and now (seconds since the epoch) is in its time.

        Raises KeyUnusable when key and certificate do not fit, CertificateRefused or WrongCluster.
        """
        if fingerprint(self.key) != fingerprint(self.certificate):
            raise KeyUnusable(
                "the host's key is not that of its certificate", hint="restore both, or join again with a new token"
            )
        return self.bundle.check_host(self.certificate, now_s)

    def renewal_due(self, now_s: float) -> bool:
        """Whether two thirds of the certificate's life are over, or another authority signs than the one it is from."""
        found = self.identity
        due_s = found.valid_from_s + (found.valid_until_s - found.valid_from_s) * _RENEWAL_SHARE
        return now_s >= due_s or found.generation != self.bundle.signing.generation

    def renewal_request(self, addresses: tuple[str, ...], key: ec.EllipticCurvePrivateKey | None = None) -> bytes:
        """A request (DER) for the next certificate; with *key* for a new key, which changes the host's fingerprint."""
        found = self.identity
        return make_request(key or self.key, found.cluster_id, found.host_id, addresses)

    def renewed(
        self, certificate: x509.Certificate, now_s: float, key: ec.EllipticCurvePrivateKey | None = None
    ) -> HostMaterial:
        """The material with the certificate that came. Raises as ``check`` does, and CertificateRefused for another
        host's."""
        new = replace(self, certificate=certificate, key=key or self.key)
        identity = new.check(now_s)
        if identity.host_id != self.identity.host_id:
            raise CertificateRefused("it is another host's", asked=self.identity.host_id, found=identity.host_id)
        return new

    def trusting(self, offered: TrustBundle) -> HostMaterial:
        """The material with the newer of its bundle and the one that came.

        Raises WrongCluster, CertificateRefused for a stranger's, or when it would not accept our own certificate any
        more: renew first.
        """
        bundle = self.bundle.followed_by(offered)
        if self.identity.generation not in [each.generation for each in bundle.authorities]:
            raise CertificateRefused(
                "this host's certificate is from an authority that is no longer trusted",
                asked=", ".join(str(each.generation) for each in bundle.authorities),
                found=f"generation {self.identity.generation}",
                hint="join again with a new token",
            )
        return replace(self, bundle=bundle)


def store_material(folder: Path, material: HostMaterial) -> None:
    """Store the material, on disk when this returns. Raises DataDirUnusable, KeyExposed.

    The bundle goes first. Both orders leave something that fits when a crash comes in between: a bundle is newer than
    the last one and accepts what was accepted before until that is retired.
    """
    write_private(folder / BUNDLE_FILE, (json.dumps(material.bundle.to_plain(), indent=1) + "\n").encode())
    write_private(folder / HOST_FILE, material.pem)
    (folder / JOINING_FILE).unlink(missing_ok=True)


def load_material(folder: Path, now_s: float, *, expired_too: bool = False) -> HostMaterial | None:
    """Load and check the material in *folder*; ``None`` on a host that belongs to no cluster yet.

    *expired_too*: also when the certificate ran out, for a voter that can issue itself another (``issue_own``).

    Raises KeyExposed, KeyUnusable, CertificateRefused (expired, for instance) or WrongCluster, each with what to do.
    """
    try:
        host = read_private(folder / HOST_FILE)
    except FileNotFoundError:
        return None
    try:
        plain = json.loads(read_private(folder / BUNDLE_FILE))
    except FileNotFoundError as error:
        raise KeyUnusable(
            f"{folder / BUNDLE_FILE} is missing",
            asked=str(folder),
            hint="copy it from another host of the cluster, it is not secret; or join again with a new token",
        ) from error
    except (ValueError, RecursionError) as error:
        raise KeyUnusable(
            f"{folder / BUNDLE_FILE} is damaged",
            asked=str(folder),
            hint="copy it from another host of the cluster, it is not secret; or join again with a new token",
        ) from error
    found = _CERTIFICATE.findall(host)
    if len(found) != 1:
        raise _unreadable(folder, f"{len(found)} certificates in it")
    key = _read_host_key(folder, host)
    try:
        material = HostMaterial(key, read_certificate(found[0]), read_bundle(plain))
        material.check(min(now_s, material.identity.valid_until_s) if expired_too else now_s)
    except WrongCluster as error:
        raise KeyUnusable(
            f"{HOST_FILE} and {BUNDLE_FILE} are not of one cluster",
            asked=error.asked,
            found=error.found,
            hint="restore both from one backup, or join again with a new token",
        ) from error
    return material


def issue_own(
    authority: Authority,
    bundle: TrustBundle,
    key: ec.EllipticCurvePrivateKey,
    host_id: str,
    addresses: tuple[str, ...],
    now_s: float,
    serial: int,
) -> HostMaterial:
    """The material of a host that has the authority's key: the first of a cluster, or a voter whose certificate ran out
    while nobody was there to renew it. *serial*: 1 to 159 random bits. Raises BadRequest, CertificateRefused."""
    request = make_request(key, authority.cluster_id, host_id, addresses)
    checked = check_request(request, authority.cluster_id, host_id, addresses)
    return HostMaterial(key, authority.issue(checked, now_s, serial), bundle)


def ensure_host_key(folder: Path, *, anew: bool = False) -> ec.EllipticCurvePrivateKey:
    """The key to join with: that of a join under way, else the host's own, else a new one that is kept.

    A host that joins again with its own key is known to the ledger by it. *anew*: never its own; for a host that was
    removed, or whose key may be known to others. Raises KeyExposed, KeyUnusable, DataDirUnusable.
    """
    path = folder / JOINING_FILE
    begun = spare_key(folder)
    if begun is not None:
        return begun
    if not anew:
        try:
            return _read_host_key(folder, read_private(folder / HOST_FILE))
        except FileNotFoundError:
            pass
    key = new_private_key()
    write_private(path, key_bytes(key))
    return key


def spare_key(folder: Path) -> ec.EllipticCurvePrivateKey | None:
    """The new key whose certificate has not come yet, if there is one. Raises KeyExposed, KeyUnusable."""
    try:
        return read_key(read_private(folder / JOINING_FILE))
    except FileNotFoundError:
        return None


def drop_spare_key(folder: Path) -> None:
    """Remove the spare key; none there is no error."""
    (folder / JOINING_FILE).unlink(missing_ok=True)


def _read_host_key(folder: Path, host: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(_CERTIFICATE.sub(b"", host), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _unreadable(folder, str(error)[:120]) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise _unreadable(folder, "a key of another kind")
    return key


def _unreadable(folder: Path, found: str) -> KeyUnusable:
    return KeyUnusable(
        f"{folder / HOST_FILE} is damaged",
        asked="the host's key and its certificate, PEM",
        found=found,
        hint="restore it from a backup, or join again with a new token",
    )
