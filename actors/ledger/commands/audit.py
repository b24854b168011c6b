"""The command of the ledger about audit logs: a host tells the head of its own."""

from dataclasses import field

from actorgrid.digests import is_digest

from ..audit_head_records import KEY_MAX, NOTE_MAX
from ..command import Command, Proposer, verb
from ..field_checks import Id, Plain, Text, Texts, Truth, Whole, refused
from ..merkle_proofs import PROOF_MAX

AUDIT_HEADS_SINCE = 10
"""The version from which the ledger holds heads of audit logs."""


@verb("report_audit_head", Proposer.ITSELF, since=AUDIT_HEADS_SINCE)
class ReportAuditHead(Command):
    """Tell the head of a host's audit log. *proof* shows that it goes on from the head that is held (RFC 9162, 2.1.4);
    *anew*: it does not, and another log begins, beside the last head of the one before."""

    host_id: Id
    size: Whole
    root: Text
    note: Text
    key: Text
    proof: Texts = field(default_factory=list)
    anew: Truth = False

    @classmethod
    def check(cls, plain: Plain) -> None:
        """Check the forms of texts and hashes."""
        proof = plain.get("proof", [])
        if not is_digest(plain["root"]) or len(proof) > PROOF_MAX or not all(map(is_digest, proof)):
            raise refused("report_audit_head: root and proof are SHA-256 in hex", found=f"{len(proof)} in the proof")
        if len(plain["note"]) > NOTE_MAX or len(plain["key"]) > KEY_MAX:
            raise refused(
                "report_audit_head: the note or the key is too long", found=f"{len(plain['note'])} characters"
            )
