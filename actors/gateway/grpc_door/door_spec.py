"""What the process of the gRPC door is told when it is started, and what it says when it is: one line of JSON each."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from actorgrid.errors import MalformedMessage


@dataclass(frozen=True, slots=True)
class DoorSpec:
    """Where it listens, and whom it asks."""

    listen: str
    """ADDRESS:PORT, or [ADDRESS]:PORT; port 0: any free one."""
    url: str
    """The HTTP door of its host, on loopback."""
    security: str = ""
    """The folder of the host's key and certificate; empty: no TLS."""
    client_authorities: str = ""
    """A file of certificates; clients show one of theirs. Empty: none is asked for."""
    message_bytes_max: Annotated[int, Field(ge=1, le=2**30)] = 64 * 2**20


@dataclass(frozen=True, slots=True)
class DoorWord:
    """What the process says once: the *address* at which it serves, or why it does not."""

    address: str = ""
    error: str = ""


_SPEC, _WORD = TypeAdapter(DoorSpec), TypeAdapter(DoorWord)


def write_spec(spec: DoorSpec) -> str:
    """The spec as the process takes it."""
    return _SPEC.dump_json(spec).decode()


def read_spec(text: str) -> DoorSpec:
    """Raises MalformedMessage."""
    try:
        return _SPEC.validate_json(text)
    except ValidationError as error:
        raise MalformedMessage("that is no spec of a gRPC door", found=str(error)[:500]) from None


def write_word(word: DoorWord) -> bytes:
    """The line that the process says."""
    return _WORD.dump_json(word) + b"\n"


def read_word(line: bytes) -> DoorWord:
    """Raises MalformedMessage."""
    try:
        return _WORD.validate_json(line)
    except ValidationError as error:
        raise MalformedMessage("the gRPC door said what is no word of its", found=str(error)[:300]) from None
