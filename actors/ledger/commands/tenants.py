"""Commands of the ledger about tenants."""

from typing import Annotated, Any

from actorgrid.access import ALL_TENANTS, check_tenant

from ..command import Command, Proposer, verb
from ..field_checks import Plain, Text, Truth, is_whole, refused
from ..tenant_records import CPU, GPU, GPU_MEMORY, JOBS_WAITING, MEMORY, OF_MODEL, WAITING_BYTES

TENANTS_SINCE = 10
"""The version from which there are records of tenants."""
WEIGHT_MILLI_MAX = 1_000_000
AMOUNT_MAX = 2**53
MODELS_MAX = 32
MODEL_CHARS_MAX = 64
_RESOURCES = (GPU, GPU_MEMORY, CPU, MEMORY)
_WAITING = (JOBS_WAITING, WAITING_BYTES)


def _is_name(value: Any) -> bool:
    if not isinstance(value, str) or not value or value == ALL_TENANTS:
        return False
    check_tenant(value)
    return True


def _are_amounts(value: Any) -> bool:
    return isinstance(value, dict) and len(value) <= MODELS_MAX + len(_RESOURCES) + len(_WAITING)


def _is_weight(value: Any) -> bool:
    return bool(is_whole(value)) and 1 <= value <= WEIGHT_MILLI_MAX


@verb("put_tenant", Proposer.DOOR, since=TENANTS_SINCE)
class PutTenant(Command):
    """Create a tenant (*create*), or give one that there is other terms: weight, guarantee and limits as a whole."""

    tenant: Annotated[str, _is_name]
    weight_milli: Annotated[int, _is_weight]
    guarantee: Annotated[dict[str, int], _are_amounts]
    limits: Annotated[dict[str, int], _are_amounts]
    create: Truth = False
    by: Text = ""

    @classmethod
    def check(cls, plain: Plain) -> None:
        """Check the names of amounts, and that they are amounts."""
        for what, more in (("guarantee", ()), ("limits", _WAITING)):
            for name, amount in plain[what].items():
                model = name[len(OF_MODEL) :] if isinstance(name, str) and name.startswith(OF_MODEL) else ""
                if name not in (*_RESOURCES, *more) and not (0 < len(model) <= MODEL_CHARS_MAX and model.isprintable()):
                    raise refused(f"a tenant has no {what} of {name!r:.100}", found=", ".join((*_RESOURCES, *more)))
                if not is_whole(amount) or amount > AMOUNT_MAX:
                    raise refused(f"{what} of {name} is no amount", found=repr(amount)[:100])


@verb("remove_tenant", Proposer.DOOR, since=TENANTS_SINCE)
class RemoveTenant(Command):
    """Remove a tenant: its keys open nothing from then on, and nothing of it is taken or starts any more."""

    tenant: Annotated[str, _is_name]
    by: Text = ""
