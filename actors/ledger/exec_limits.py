"""What execve takes of a command and its environment: asked at the door, not found out by the attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from actorgrid.errors import CommandTooLarge
from actorgrid.sizes import ARGUMENT_BYTES_MAX, EXEC_BYTES_MAX

_POINTER_BYTES = 8
_HINT = "write what is large to a file, or send it by standard input, and pass its path"


def check_exec(command: Sequence[str], env: Mapping[str, str]) -> None:
    """Raises CommandTooLarge when no host could run *command* with *env*, naming what is too large."""
    total = 0
    for position, argument in enumerate(command):
        total += _check(f"argument {position} of the command", argument)
    for name, value in env.items():
        total += _check(f"the environment variable {name[:80]}", f"{name}={value}")
    if total > EXEC_BYTES_MAX:
        raise CommandTooLarge(
            "the command and its environment are larger than a process can be given",
            asked=f"{total} bytes in {len(command)} arguments and {len(env)} variables",
            found=f"at most {EXEC_BYTES_MAX} together",
            hint=_HINT,
        )


def _check(what: str, text: str) -> int:
    size = len(text.encode("utf-8", "surrogateescape")) + 1
    if size > ARGUMENT_BYTES_MAX:
        raise CommandTooLarge(
            f"{what} is larger than a process can be given",
            asked=f"{size} bytes with its end",
            found=f"at most {ARGUMENT_BYTES_MAX} for each",
            hint=_HINT,
        )
    return size + _POINTER_BYTES
