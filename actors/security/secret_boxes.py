"""The values of secrets, sealed and opened: anybody of the cluster seals, and only who has an authority's key opens.

A value is sealed (HPKE, ``sealing.py``) to the public key of each of the cluster's authorities, whose private keys the
voters have. So a host that takes a secret at its door keeps and sends nothing that is open, and no other host has to be
asked. On a host that is alone there is no authority: it wraps with a key of its own, which stays good, for that host,
once it is of a cluster.

The name of the secret and its tenant are bound to what is sealed: a box that is moved to another name does not open.
"""

from __future__ import annotations

import os
from pathlib import Path
from time import time

from actorgrid.access import tenant_of
from actorgrid.errors import KeyUnusable

from ..ledger.secret_records import SecretRecord
from .certificates import read_certificate
from .host_material import WRAP_FILE, HostMaterial, load_material
from .keys import ensure_wrap_key, load_authority
from .sealing import NONCE_BYTES, seal, unseal, unwrap, wrap

KEY_FILE = "secrets.key"
_AUTHORITY, _HOST = "authority ", "host "


class SecretBoxes:
    """Of one host, whose keys lie in *folder*: read anew at each use, which is seldom, as they change."""

    def __init__(self, folder: Path, host_id: str) -> None:
        self._folder = folder
        self._own = _HOST + host_id

    def seal(self, value: bytes, user_id: str, name: str) -> dict[str, str]:
        """*value* for all authorities there are; on a host that is alone, for itself. Raises KeyUnusable."""
        purpose, material = _purpose(user_id, name), self._material()
        if material is None:
            key = ensure_wrap_key(self._folder / KEY_FILE)
            return {self._own: wrap(key, os.urandom(NONCE_BYTES), value, purpose).hex()}
        return {
            f"{_AUTHORITY}{each.generation}": seal(each.certificate, value, purpose).hex()
            for each in material.bundle.authorities
        }

    def open(self, record: SecretRecord) -> bytes | None:
        """The value; ``None``: this host has no key for it. Raises KeyUnusable for what is damaged."""
        purpose, material = _purpose(record["user_id"], record["name"]), self._material()
        boxes = record["boxes"]
        if self._own in boxes and (self._folder / KEY_FILE).exists():
            return unwrap(ensure_wrap_key(self._folder / KEY_FILE), _bytes(boxes[self._own]), purpose)
        if material is None:
            return None
        wrap_key = ensure_wrap_key(self._folder / WRAP_FILE)
        for each in material.bundle.authorities:
            box = boxes.get(f"{_AUTHORITY}{each.generation}")
            if box is None:
                continue
            authority = load_authority(self._folder, material.bundle, each.generation, wrap_key)
            if authority is not None:
                return unseal(authority.key, _bytes(box), purpose)
        return None

    def resealed(self, record: SecretRecord) -> dict[str, str] | None:
        """The value sealed to the authorities there are now; ``None``: it is, or this host cannot open it."""
        material = self._material()
        if material is None:
            return None
        wanted = {f"{_AUTHORITY}{each.generation}" for each in material.bundle.authorities}
        if wanted == set(record["boxes"]):
            return None
        value = self.open(record)
        return None if value is None else self.seal(value, record["user_id"], record["name"])

    def for_host(self, value: bytes, certificate: str, attempt_id: str, name: str) -> str:
        """*value* for the host with that certificate (PEM), for one attempt. Raises CertificateRefused."""
        return seal(read_certificate(certificate.encode()), value, _release(attempt_id, name)).hex()

    def from_holder(self, box: str, attempt_id: str, name: str) -> bytes:
        """What another host sealed for this one. Raises KeyUnusable."""
        material = self._material()
        if material is None:
            raise KeyUnusable("a host that is alone is sent no secrets", asked=name)
        return unseal(material.key, _bytes(box), _release(attempt_id, name))

    def _material(self) -> HostMaterial | None:
        return load_material(self._folder, time(), expired_too=True)


def _purpose(user_id: str, name: str) -> str:
    return f"secret {tenant_of(user_id)}/{name} of {user_id}"


def _release(attempt_id: str, name: str) -> str:
    return f"secret {name} for {attempt_id}"


def _bytes(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise KeyUnusable("a sealed value is no hexadecimal text", asked=text[:20]) from error
