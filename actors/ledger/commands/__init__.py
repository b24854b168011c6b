"""The ledger's commands: one class for each verb, with its fields, their checks and who may propose it.

A new verb is a class in the module of its subject, named here, and the method of a table that carries it out
(``entry.py``: ``applies``).
"""

from .audit import AUDIT_HEADS_SINCE, ReportAuditHead
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
from .secrets import SECRETS_SINCE, RemoveSecret, ResealSecret, SetSecret
from .services import (
    SERVICES_SINCE,
    AdvanceService,
    PutService,
    RemoveService,
    ReportReplica,
    RollBackService,
    ScaleService,
)
from .shared_state import FINALS_MAX, RETIREMENT_SINCE, RetireOrigins
from .tenants import TENANTS_SINCE, PutTenant, RemoveTenant
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
    "AUDIT_HEADS_SINCE",
    "FINALS_MAX",
    "GRAPHS_SINCE",
    "LIMITS_SINCE",
    "MEMBERSHIP_SINCE",
    "NOTICES_SINCE",
    "RETIREMENT_SINCE",
    "SCHEDULES_SINCE",
    "SECRETS_SINCE",
    "SERVICES_SINCE",
    "TENANTS_SINCE",
    "AcquireLock",
    "AddMember",
    "AdvanceGraph",
    "AdvanceService",
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
    "PutService",
    "PutTenant",
    "RedeemJoinToken",
    "RegisterHost",
    "ReleaseLease",
    "ReleaseLock",
    "RemoveMember",
    "RemoveSchedule",
    "RemoveSecret",
    "RemoveService",
    "RemoveTenant",
    "RenewLock",
    "ReportAuditHead",
    "ReportReplica",
    "ReportTrust",
    "RequestCertificate",
    "ResealSecret",
    "RetireOrigins",
    "RetryGraph",
    "RetryJob",
    "RetrySteps",
    "RevokeApiKey",
    "RevokeJoinToken",
    "RollBackService",
    "RotateGossipKey",
    "RunSchedule",
    "ScaleService",
    "SealAuthority",
    "SetMaintenance",
    "SetQuota",
    "SetSecret",
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
