"""Commands of the ledger about certificates and the keys of authorities."""

from typing import Annotated

from ..command import Command, Proposer, verb
from ..field_checks import Id, Indexes, Number, Plain, Text, Texts, Whole, is_table
from ..record_checks import check_bundle
from ..trust_records import BundleRecord


@verb("publish_bundle", Proposer.VOTER)
class PublishBundle(Command):
    """Publish the next trust bundle, as plain values: the first, or one step from the one that the ledger has."""

    bundle: Annotated[BundleRecord, is_table]

    @classmethod
    def check(cls, plain: Plain) -> None:
        """Check the bundle."""
        check_bundle(plain["bundle"])


@verb("report_trust", Proposer.ITSELF)
class ReportTrust(Command):
    """Report what a member has: its certificate (PEM), the version of the bundle, and which authorities' keys."""

    host_id: Id
    certificate: Text
    fingerprint: Text
    generation: Whole
    valid_until: Number
    bundle_version: Whole
    keys: Indexes


@verb("request_certificate", Proposer.ITSELF)
class RequestCertificate(Command):
    """Ask for a certificate for a member; *csr* is the request (PKCS #10) in hex. Answer: its number."""

    host_id: Id
    csr: Text
    addresses: Texts


@verb("issue_certificate", Proposer.VOTER)
class IssueCertificate(Command):
    """Issue the certificate asked for under that number; proposed by a host that has the authority's key."""

    host_id: Id
    request: Whole
    certificate: Text
    fingerprint: Text


@verb("seal_authority", Proposer.VOTER)
class SealAuthority(Command):
    """Hand an authority's key to a member, sealed (hex) for its certificate's key."""

    host_id: Id
    generation: Whole
    fingerprint: Text
    sealed: Text
