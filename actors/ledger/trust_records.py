"""The ledger's records of the cluster's trust, one line for each field: authorities, bundle, certificates of hosts.

Plain maps, as those of ``record_types.py``.
"""

from __future__ import annotations

from typing import TypedDict


class AuthorityRecord(TypedDict):
    """One generation of the cluster's authority, in a bundle."""

    generation: int
    """Its number, from 1."""
    state: str
    """waiting, signing or accepted."""
    certificate: str
    """Its certificate, as PEM."""
    endorsements: dict[str, str]
    """Signatures of the generations around it, in hex, by their numbers."""


class BundleRecord(TypedDict):
    """The trust bundle: the authorities that the cluster accepts."""

    format: int
    """The format of the bundle."""
    cluster_id: str
    """The cluster that it is for."""
    version: int
    """Its version, from 1; each step is one more."""
    authorities: list[AuthorityRecord]
    """The authorities that are accepted, one or two."""


class CertificateRequestRecord(TypedDict):
    """A certificate that a host asks for."""

    id: int
    """The index of the entry that asked."""
    csr: str
    """The request, as PKCS #10 in hex."""
    addresses: list[str]
    """The addresses that the certificate is to name."""


class IssuedRecord(TypedDict):
    """A certificate that was made and not taken yet."""

    certificate: str
    """The certificate, as PEM."""


class TrustRecord(TypedDict, total=False):
    """A host's part in the cluster's trust: its certificate, keys and requests; under ``@bundle`` the bundle alone."""

    bundle: BundleRecord
    """The cluster's trust bundle."""
    host_id: str
    """The host whose record it is."""
    certificate: str
    """Its certificate, as PEM; empty before it said so."""
    fingerprint: str
    """The fingerprint of that certificate."""
    generation: int
    """The generation that issued it."""
    valid_until: float
    """When that certificate runs out."""
    bundle_version: int
    """The version of the bundle that it has."""
    keys: list[int]
    """The generations whose key it has."""
    sealed: dict[str, str]
    """Keys on their way to it, by generation, in hex."""
    request: CertificateRequestRecord | None
    """Set while it waits for a certificate."""
    issued: IssuedRecord | None
    """Set until it has taken it."""
