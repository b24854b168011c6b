"""How a waiting job's tenant stands beside others, in words: its share, its guarantee, its limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actorgrid.amounts import counted, mebibytes

from ...ledger.tenant_records import GPU_MEMORY, MEMORY, OF_MODEL

_NOUNS = {"gpu": "GPUs", GPU_MEMORY: "GPU memory", "cpu": "CPUs", MEMORY: "memory"}


def share_reasons(fit: Mapping[str, Any] | None) -> list[str]:
    """What a job's tenant has, and whether others come first; nothing where tenants do not share."""
    report = (fit or {}).get("tenant")
    if report is None:
        return []
    found = [
        f"its tenant {report['tenant']} has a share of {100 * report['share']:.1f} % (weight {report['weight']:g})"
    ]
    if report["resource"]:
        found[0] += f", by {_noun(report['resource'])}, now and of late"
    if report["ahead"]:
        found.append(f"{counted(report['ahead'], 'tenant')} with waiting jobs has less, and comes first")
    if report["guarantee"]:
        within = "within" if report["within_guarantee"] else "beyond"
        amounts = ", ".join(
            f"{amount_shown(name, report['used'].get(name, 0))} of {amount_shown(name, amount)} {_noun(name)}"
            for name, amount in sorted(report["guarantee"].items())
        )
        found.append(f"it is {within} the tenant's guarantee: {amounts} in use")
    return found


def kept_out_by_tenant(fit: Mapping[str, Any]) -> str:
    """Why the limits of its tenant keep a job aside, in words; empty: they do not."""
    report = fit.get("tenant")
    limit = "" if report is None else report["limit"]
    if report is None or not limit:
        return ""
    if limit == "removed":
        return f"its tenant {report['tenant']} was removed"
    used = amount_shown(limit, report["used"].get(limit, 0))
    most = amount_shown(limit, report["limit_amount"] or 0)
    return f"the limits of tenant {report['tenant']} have no room for it: {used} of {most} {_noun(limit)} in use"


def amount_shown(name: str, amount: int) -> str:
    """An amount of a resource as text, without what it is of."""
    return mebibytes(amount) if name in (GPU_MEMORY, MEMORY) else f"{amount / 1000:g}"


def _noun(name: str) -> str:
    return f"{name[len(OF_MODEL) :]} GPUs" if name.startswith(OF_MODEL) else _NOUNS.get(name, name)
