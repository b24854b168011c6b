"""Who may do what: five roles, one table, and what of a thing a role reaches; for HTTP, command line and Python alike.

A *binding* is a role in a tenant, or in all of them (``*``). A *right* is a verb and an object; every route names one.
The table says for each right and role how far it reaches: to nothing, to what is one's own, to all of the tenant. What
is not in reach is not there for whoever asks (404), and a right that reaches nothing is refused (403).

A user's name says the tenant: ``ann@lab`` is ann of the tenant lab, and names without an ``@`` are of ``default``. So
whatever the ledger keeps a user for has a tenant already (docs/decisions/0067).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final

from actorgrid.errors import BadRequest

ALL_TENANTS: Final = "*"
DEFAULT_TENANT: Final = "default"
SIGN: Final = "@"
TENANT_MAX = 48
USER_MAX = 128
"""Characters of a user's name, its tenant included."""


class Role(StrEnum):
    """What somebody is in a tenant."""

    VIEWER = "viewer"
    USER = "user"
    OPERATOR = "operator"
    ADMIN = "admin"
    SERVICE = "service"
    """Work on its own cluster: never more than whoever submitted it."""


class Reach(Enum):
    """How far a right goes."""

    NONE = "-"
    OWN = "own"
    TENANT = "tenant"
    ANY = "yes"
    """It is about what belongs to nobody: the role may, in whichever tenant."""
    CLUSTER = "all"
    """Only with a binding to all tenants."""


class Right(Enum):
    """A verb and an object."""

    SEE_HEALTH = ("see", "whether the host answers")
    SEE_CLUSTER = ("see", "the cluster in figures")
    LIST_HOSTS = ("list", "hosts and GPUs")
    MANAGE_HOSTS = ("drain, restart, cut, give new code", "hosts")
    REMOVE_HOSTS = ("remove", "hosts")
    SEE_METRICS = ("read", "metrics")
    SEE_SERVERS = ("look into", "servers")
    HOLD_SERVERS = ("trace, suspend", "servers")
    READ_SETTINGS = ("read", "settings")
    WRITE_SETTINGS = ("write", "settings")
    LIST_JOBS = ("list, explain", "jobs, schedules, services")
    SUBMIT_JOBS = ("submit", "jobs, schedules, services")
    STEER_JOBS = ("cancel, retry, edit", "jobs, schedules, services")
    READ_OUTPUT = ("read, enter", "logs, results, terminals")
    USE_WORKERS = ("lease", "workers")
    LIST_LEASES = ("list", "leases and allocations")
    LIST_ENVIRONMENTS = ("list", "environments of hosts")
    REMOVE_ENVIRONMENTS = ("remove", "environments of hosts")
    READ_STATE = ("read", "shared state")
    WRITE_STATE = ("write", "shared state")
    MEASURE_STATE = ("measure", "shared state")
    LIST_LOCKS = ("list", "locks")
    USE_LOCKS = ("take", "locks")
    BREAK_LOCKS = ("break", "locks")
    READ_QUOTAS = ("read", "quotas, tenants")
    WRITE_QUOTAS = ("write", "quotas, tenants")
    READ_USAGE = ("read", "usage")
    SEE_FAULTS = ("read", "faults, alerts, load")
    SILENCE_ALERTS = ("silence, test", "alerts")
    LIST_NOTICES = ("list", "notifications")
    CLEAR_NOTICES = ("clear", "notifications")
    TEST_TARGETS = ("test", "targets of notifications")
    MANAGE_TRUST = ("manage", "join tokens, authority")
    LIST_SECRETS = ("list", "secrets")
    WRITE_SECRETS = ("set, remove", "secrets")
    READ_AUDIT = ("read", "audit records")
    EXPORT_AUDIT = ("export, prove", "audit log")
    SEE_SELF = ("see", "who one is")
    SIGN_IN = ("sign in", "by an identity provider")
    LIST_KEYS = ("list", "API keys")
    MAKE_KEYS = ("make, rotate", "API keys")
    REVOKE_KEYS = ("revoke", "API keys")


_N, _O, _T, _A, _C = Reach.NONE, Reach.OWN, Reach.TENANT, Reach.ANY, Reach.CLUSTER
ROLES = (Role.VIEWER, Role.USER, Role.OPERATOR, Role.ADMIN, Role.SERVICE)
TABLE: Final[dict[Right, tuple[Reach, Reach, Reach, Reach, Reach]]] = {
    #                          viewer user operator admin service
    Right.SEE_HEALTH: (_A, _A, _A, _A, _A),
    Right.SEE_CLUSTER: (_A, _A, _A, _A, _A),
    Right.LIST_HOSTS: (_N, _A, _A, _A, _A),
    Right.MANAGE_HOSTS: (_N, _N, _C, _C, _N),
    Right.REMOVE_HOSTS: (_N, _N, _N, _C, _N),
    Right.SEE_METRICS: (_C, _N, _C, _C, _N),
    Right.SEE_SERVERS: (_N, _N, _C, _C, _N),
    Right.HOLD_SERVERS: (_N, _N, _N, _C, _N),
    Right.READ_SETTINGS: (_N, _N, _C, _C, _N),
    Right.WRITE_SETTINGS: (_N, _N, _N, _C, _N),
    Right.LIST_JOBS: (_T, _T, _T, _T, _O),
    Right.SUBMIT_JOBS: (_N, _O, _N, _T, _O),
    Right.STEER_JOBS: (_N, _O, _T, _T, _O),
    Right.READ_OUTPUT: (_N, _O, _N, _T, _O),
    Right.USE_WORKERS: (_N, _O, _N, _T, _O),
    Right.LIST_LEASES: (_T, _T, _T, _T, _O),
    Right.LIST_ENVIRONMENTS: (_N, _N, _C, _C, _N),
    Right.REMOVE_ENVIRONMENTS: (_N, _N, _C, _C, _N),
    Right.READ_STATE: (_T, _O, _T, _T, _O),
    Right.WRITE_STATE: (_N, _O, _N, _T, _O),
    Right.MEASURE_STATE: (_N, _N, _C, _C, _N),
    Right.LIST_LOCKS: (_T, _T, _T, _T, _T),
    Right.USE_LOCKS: (_N, _T, _T, _T, _T),
    Right.BREAK_LOCKS: (_N, _N, _T, _T, _N),
    Right.READ_QUOTAS: (_T, _T, _T, _T, _O),
    Right.WRITE_QUOTAS: (_N, _N, _N, _C, _N),
    Right.READ_USAGE: (_O, _O, _T, _T, _O),
    Right.SEE_FAULTS: (_N, _N, _C, _C, _N),
    Right.SILENCE_ALERTS: (_N, _N, _C, _C, _N),
    Right.LIST_NOTICES: (_T, _O, _T, _T, _N),
    Right.CLEAR_NOTICES: (_N, _O, _T, _T, _N),
    Right.TEST_TARGETS: (_N, _N, _C, _C, _N),
    Right.MANAGE_TRUST: (_N, _N, _N, _C, _N),
    Right.LIST_SECRETS: (_N, _T, _T, _T, _N),
    Right.WRITE_SECRETS: (_N, _O, _N, _T, _N),
    Right.READ_AUDIT: (_O, _O, _T, _T, _N),
    Right.EXPORT_AUDIT: (_N, _N, _N, _C, _N),
    Right.SEE_SELF: (_A, _A, _A, _A, _A),
    Right.SIGN_IN: (_A, _A, _A, _A, _A),
    Right.LIST_KEYS: (_O, _O, _T, _T, _N),
    Right.MAKE_KEYS: (_N, _N, _N, _T, _N),
    Right.REVOKE_KEYS: (_O, _O, _T, _T, _N),
}
"""What each role may, by right: viewer, user, operator, admin, service."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What of others a right reaches: one *user*'s, all of a *tenant*, or (neither) everything."""

    user: str | None = None
    tenant: str | None = None

    @property
    def is_all(self) -> bool:
        """Whether nothing is out of reach."""
        return self.user is None and self.tenant is None

    def covers(self, user: str) -> bool:
        """Whether what is *user*'s is in reach."""
        if self.user is not None:
            return user == self.user
        return self.tenant is None or tenant_of(user) == self.tenant


EVERYTHING: Final = Scope()


@dataclass(frozen=True, slots=True)
class Identity:
    """Who asks, by what was shown at the door. *user*: with the tenant in its name; *name*: as records show it."""

    name: str
    user: str
    role: Role
    tenant: str
    """The tenant of the binding, or ``*``."""
    key_id: str | None = None
    work_id: str | None = None

    @property
    def is_cluster_admin(self) -> bool:
        """Whether it may act for anybody: an administrator of all tenants."""
        return self.role is Role.ADMIN and self.tenant == ALL_TENANTS

    def scope(self, right: Right) -> Scope | None:
        """What *right* reaches for it; ``None``: nothing at all."""
        reach = TABLE[right][ROLES.index(self.role)]
        if reach is Reach.NONE or (reach is Reach.CLUSTER and self.tenant != ALL_TENANTS):
            return None
        if reach is Reach.OWN:
            return Scope(user=self.user)
        return EVERYTHING if self.tenant == ALL_TENANTS else Scope(tenant=self.tenant)


def tenant_of(user: str) -> str:
    """The tenant that a user's name says."""
    return user.rpartition(SIGN)[2] if SIGN in user else DEFAULT_TENANT


def in_tenant(name: str, tenant: str) -> str:
    """The whole name of the user *name* of *tenant*; of the tenant ``default`` (and of none) it is the name itself."""
    return name if tenant in (DEFAULT_TENANT, ALL_TENANTS) else f"{name}{SIGN}{tenant}"


def check_tenant(tenant: str) -> None:
    """Raises BadRequest for what cannot be the name of a tenant."""
    plain = tenant.replace("-", "").replace("_", "").replace(".", "")
    if not (plain.isascii() and plain.isalnum() and tenant[0].isalnum()) or len(tenant) > TENANT_MAX:
        raise BadRequest(
            "not the name of a tenant",
            asked=ascii(tenant)[:100],
            found=f"letters, digits, '-', '_' and '.', at most {TENANT_MAX}; {ALL_TENANTS} is all of them",
        )


def check_user_name(name: str) -> None:
    """Raises BadRequest for what cannot be a user of a tenant: the name has no ``@`` and no ``/``."""
    most = USER_MAX - TENANT_MAX - len(SIGN)
    if not name or len(name) > most or not name.isprintable() or any(each in name for each in (SIGN, "/", " ")):
        raise BadRequest(
            "not the name of a user",
            asked=ascii(name)[:100],
            found=f"1 to {most} characters that can be printed, without '{SIGN}', '/' and spaces",
            hint="the tenant is said by --tenant",
        )


def may_grant(maker: Identity, tenant: str) -> bool:
    """Whether *maker* may make keys of *tenant*, of any role: those who may are administrators there themselves."""
    scope = maker.scope(Right.MAKE_KEYS)
    return scope is not None and maker.tenant in (tenant, ALL_TENANTS)
