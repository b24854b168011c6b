"""The audit log as requests ask for it and answers show it."""

from __future__ import annotations

from pydantic import Field

from actorgrid.models import AnswerBody, RequestBody

PAGE, PAGE_MAX = 100, 1000
LAST = 2**53


class AuditQuery(RequestBody):
    """Which records: so many before one of that number."""

    limit: int = Field(default=PAGE, ge=1, le=PAGE_MAX)
    before: int = Field(default=LAST, ge=0, le=LAST)


class AuditView(AnswerBody):
    """One thing that was asked of this host, and what became of it."""

    seq: int
    at: float
    host: str
    user: str
    key: str
    role: str
    tenant: str
    address: str
    verb: str
    what: str
    object: str
    status: int
    outcome: str


class AuditAnswer(AnswerBody):
    """Records in reach, newest first. ``next``: go on before that one; null: there are no more."""

    records: list[AuditView]
    next: int | None
    size: int = Field(description="records of this host's log, all together")
    lost: int = Field(description="records that were not kept because the disk was too slow, since the host's start")


class AuditExportQuery(RequestBody):
    """From which record on; at most 16,384 come at once."""

    first: int = Field(default=0, ge=0, le=LAST)


class AuditHead(AnswerBody):
    """A signed head of this host's log. ``first``: the first record that is kept; ``roots``: of what was before it."""

    note: str = Field(description="C2SP tlog-checkpoint")
    key: str = Field(description="by which it is checked: NAME+ID+KEY")
    size: int
    first: int
    roots: list[str]


class AuditHeadFact(AnswerBody):
    """A head of an audit log, as its host told it."""

    log: int = Field(description="which log of its host, from 1")
    size: int
    root: str
    note: str = Field(description="C2SP tlog-checkpoint")
    key: str = Field(description="by which it is checked, as the host says: NAME+ID+KEY")
    at: float


class HeldAuditHead(AuditHeadFact):
    """The head of a host's audit log that the cluster holds. ``ended``: the last heads of its logs of before."""

    host_id: str
    hostname: str
    ended: list[AuditHeadFact]


class HeldAuditHeads(AnswerBody):
    """What the cluster holds of the hosts' audit logs, by host."""

    heads: list[HeldAuditHead]


class AuditProofQuery(RequestBody):
    """Of which record, in the tree of how many; null: of all."""

    seq: int = Field(default=0, ge=0, le=LAST)
    size: int | None = Field(default=None, ge=1, le=LAST)


class AuditProof(AnswerBody):
    """That a record is in the log (RFC 9162, 2.1.3). ``note`` is a head of all records."""

    seq: int
    size: int
    record: str
    proof: list[str]
    note: str
    key: str


class AuditGrowthQuery(RequestBody):
    """Between which two sizes; null: all records."""

    first: int = Field(default=1, ge=1, le=LAST)
    second: int | None = Field(default=None, ge=1, le=LAST)


class AuditGrowth(AnswerBody):
    """That the log of ``second`` records begins with that of ``first`` (RFC 9162, 2.1.4)."""

    first: int
    second: int
    proof: list[str]
    note: str
    key: str
