"""What every section of the settings is made of."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from actorgrid.amounts import parse_bytes

ByteCount = Annotated[int, BeforeValidator(parse_bytes), Field(ge=0, le=2**60)]


def setting(default: Any, description: str, *, live: bool = False, **bounds: Any) -> Any:
    """A field with its description and whether it is live."""
    return Field(default=default, description=description, json_schema_extra={"live": live}, **bounds)


class Section(BaseModel):
    """Base of every section: unknown keys are refused, changes are validated."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, validate_default=True)
