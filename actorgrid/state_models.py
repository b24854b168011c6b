"""What the HTTP API takes and gives of the shared state."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from actorgrid.models import AnswerBody, RequestBody
from actorgrid.sizes import STATE_KEY_MAX


class StateEntry(AnswerBody):
    """One key of the shared state."""

    key: str
    type: str
    value: Any
    expires_at: float | None = None
    """When the key ends by itself, in seconds since 1970; of one that does not, it is not there."""


class StateChange(RequestBody):
    """One mutator; ``operation`` depends on the type. ``delete`` is for every type."""

    type: Literal["lww_register", "mv_register", "g_counter", "pn_counter", "or_set", "or_map", "ew_flag"] = (
        "lww_register"
    )
    operation: Literal[
        "put",
        "increment",
        "decrement",
        "add",
        "remove",
        "put_field",
        "remove_field",
        "enable",
        "disable",
        "delete",
        "compare_and_put",
    ] = "put"
    value: Any = None
    field: str | None = Field(default=None, max_length=STATE_KEY_MAX)
    ttl_s: float | None = Field(default=None, gt=0, le=366 * 86400)
    """Of what is put: it ends so many seconds after."""
    expected: Any = None
    """Of compare_and_put: the value that the key must have on this host."""
    absent: bool = False
    """Of compare_and_put, in place of ``expected``: the key must not be there."""

    @property
    def expects(self) -> tuple[Any, ...] | None:
        """What compare_and_put expects: one value, or of no length for none; ``None`` where it was not said."""
        if self.absent:
            return ()
        return (self.expected,) if "expected" in self.model_fields_set else None


class StateMutation(StateChange):
    """One mutator on one key, and how durable it has to be."""

    durability: Literal["host", "majority"] = "host"
    """Whose disks it has to be on before it is answered: this host's, or those of more than half of the members."""
    within_s: float = Field(default=5.0, gt=0, le=60)
    """How long to wait for a majority."""


class StateKeyChange(StateChange):
    """One mutator of a batch, on its key."""

    key: str = Field(min_length=1, max_length=STATE_KEY_MAX)


class StateBatchRequest(RequestBody):
    """Several mutators, applied all or none, in order, in one commit of the host."""

    mutations: list[StateKeyChange] = Field(min_length=1, max_length=1000)
    durability: Literal["host", "majority"] = "host"
    within_s: float = Field(default=5.0, gt=0, le=60)
    """How long to wait for a majority."""
