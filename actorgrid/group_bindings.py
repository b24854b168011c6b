"""Which role in which tenant a group of the identity provider has: lines ``GROUP=ROLE@TENANT``, and the choice of one.

A person is in many groups, and an API key has one role in one tenant. So of the lines whose group he is in the first
counts, unless he says the tenant or the role that he wants. Nobody gets what no line gives.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from actorgrid.access import ALL_TENANTS, SIGN, Role, check_tenant
from actorgrid.errors import BadRequest, NotAllowed

BINDINGS_MAX = 1000
GROUP_MAX = 256
"""Characters of a group's name."""
SHOWN_MAX = 10
ROLES_GIVEN = (Role.VIEWER, Role.USER, Role.OPERATOR, Role.ADMIN)
"""``service`` is work's own."""


@dataclass(frozen=True, slots=True)
class GroupBinding:
    """Who is in *group* has *role* in *tenant* (``*``: in all)."""

    group: str
    role: Role
    tenant: str


def read_binding(line: str) -> GroupBinding:
    """Read ``GROUP=ROLE@TENANT``. Raises BadRequest."""
    group, equals, given = line.rpartition("=")
    word, sign, tenant = given.partition(SIGN)
    if not (equals and sign and 0 < len(group) <= GROUP_MAX and word in ROLES_GIVEN):
        raise BadRequest(
            "a group is given a role in a tenant, as GROUP=ROLE@TENANT",
            asked=ascii(line)[:200],
            found=f"roles: {', '.join(ROLES_GIVEN)}",
            hint="ml-team=user@lab; * for the tenant is all of them",
        )
    if tenant != ALL_TENANTS:
        if not tenant:
            raise BadRequest("the tenant is missing", asked=ascii(line)[:200], hint="ml-team=user@lab")
        check_tenant(tenant)
    return GroupBinding(group, Role(word), tenant)


def choose_binding(
    bindings: Iterable[GroupBinding], groups: Collection[str], tenant: str | None = None, role: str | None = None
) -> GroupBinding:
    """The first of *bindings* whose group is among *groups*, with that *tenant* and *role* where they are said.

    Raises NotAllowed, with the names of the groups.
    """
    own = [binding for binding in bindings if binding.group in groups]
    if not own:
        raise NotAllowed(
            "none of your groups has a role in this cluster",
            asked=_few([ascii(group)[1:-1][:80] for group in sorted(groups)]) or "no group",
            hint="an administrator gives a group a role by the setting oidc.groups: GROUP=ROLE@TENANT",
        )
    for binding in own:
        if tenant in (None, binding.tenant) and role in (None, binding.role.value):
            return binding
    raise NotAllowed(
        "none of your groups has that role in that tenant",
        asked=f"{role or 'any role'} of tenant {ascii(tenant)[1:-1][:80] if tenant else 'any'}",
        found=_few([f"{binding.role.value}@{binding.tenant}" for binding in own]),
    )


def _few(words: list[str]) -> str:
    more = len(words) - SHOWN_MAX
    return ", ".join(words[:SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
