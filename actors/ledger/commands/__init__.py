"""The ledger's commands: one class for each verb, with its fields, their checks and who may propose it.

A new verb is a class in the module of its subject, named here, and the method of a table that carries it out
(``entry.py``: ``applies``).
"""

from .cluster import (
    CompareDigest,
    NewTerm,
    SetQuota,
    SetSetting,
)
from .graphs import (
    GRAPHS_SINCE,
    AdvanceGraph,
    CancelSteps,
    EndGraph,
    RetryGraph,
    RetrySteps,
    SubmitGraph,
)
from .hosts import (
    AllowAbsence,
    ConfirmHost,
    DrainHost,
    LoseHost,
    MeasureHost,
    RegisterHost,
)
from .jobs import (
    LIMITS_SINCE,
    CancelJob,
    CheckpointAttempt,
    EditJob,
    EndAttempt,
    FailJob,
    GrantAttempt,
    GrantGang,
    PreemptAttempt,
    RetryJob,
    StartAttempt,
    SubmitJobs,
    TakeSuccess,
    end_facts,
    told_usage,
    value_or_none,
)
from .leases import (
    GrantLease,
    ReleaseLease,
)
from .locks import (
    AcquireLock,
    BreakLock,
    ExpireLock,
    ReleaseLock,
    RenewLock,
)
from .members import (
    AddMember,
    ChangeMember,
    FoundCluster,
    RemoveMember,
)
from .membership import (
    MEMBERSHIP_SINCE,
    MarkUnreachable,
    RotateGossipKey,
)
from .notices import NOTICES_SINCE, ClearNotices, SettleNotices
from .recovery import BeginRecovery, EndRecovery, SetMaintenance
from .schedules import (
    SCHEDULES_SINCE,
    FireSchedule,
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    RunSchedule,
)
from .shared_state import FINALS_MAX, RETIREMENT_SINCE, RetireOrigins
from .tokens import (
    CreateApiKey,
    CreateJoinToken,
    RedeemJoinToken,
    RevokeApiKey,
    RevokeJoinToken,
)
from .trust import (
    IssueCertificate,
    PublishBundle,
    ReportTrust,
    RequestCertificate,
    SealAuthority,
)

__all__ = [
    "FINALS_MAX",
    "GRAPHS_SINCE",
    "LIMITS_SINCE",
    "MEMBERSHIP_SINCE",
    "NOTICES_SINCE",
    "RETIREMENT_SINCE",
    "SCHEDULES_SINCE",
    "AcquireLock",
    "AddMember",
    "AdvanceGraph",
    "AllowAbsence",
    "BeginRecovery",
    "BreakLock",
    "CancelJob",
    "CancelSteps",
    "ChangeMember",
    "CheckpointAttempt",
    "ClearNotices",
    "CompareDigest",
    "ConfirmHost",
    "CreateApiKey",
    "CreateJoinToken",
    "DrainHost",
    "EditJob",
    "EndAttempt",
    "EndGraph",
    "EndRecovery",
    "ExpireLock",
    "FailJob",
    "FireSchedule",
    "FoundCluster",
    "GrantAttempt",
    "GrantGang",
    "GrantLease",
    "IssueCertificate",
    "LoseHost",
    "MarkUnreachable",
    "MeasureHost",
    "NewTerm",
    "PauseSchedule",
    "PreemptAttempt",
    "PublishBundle",
    "PutSchedule",
    "RedeemJoinToken",
    "RegisterHost",
    "ReleaseLease",
    "ReleaseLock",
    "RemoveMember",
    "RemoveSchedule",
    "RenewLock",
    "ReportTrust",
    "RequestCertificate",
    "RetireOrigins",
    "RetryGraph",
    "RetryJob",
    "RetrySteps",
    "RevokeApiKey",
    "RevokeJoinToken",
    "RotateGossipKey",
    "RunSchedule",
    "SealAuthority",
    "SetMaintenance",
    "SetQuota",
    "SetSetting",
    "SettleNotices",
    "StartAttempt",
    "SubmitGraph",
    "SubmitJobs",
    "TakeSuccess",
    "end_facts",
    "told_usage",
    "value_or_none",
]
