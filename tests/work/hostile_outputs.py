"""What hostile commands leave as their outputs: ways to a file that they may not read, and to what is no file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class HostileOutput(NamedTuple):
    """What a command does in its directory, and which of it are to be its outputs."""

    command: str
    outputs: list[str]
    is_refused: bool = True
    """Whether they are refused by name; else what is hostile is left out."""


def hostile_outputs(secret: Path) -> Iterator[HostileOutput]:
    """Ways to the file *secret*, which others may not read."""
    folder = secret.parent
    yield HostileOutput(f"ln -s {folder} d", [f"d/{secret.name}"])
    yield HostileOutput(f"mkdir d; ln -s {folder} d/e", [f"d/e/{secret.name}"])
    yield HostileOutput(f"ln -s {secret} out", ["out"])
    yield HostileOutput(f"mkdir d; ln -s {secret} d/out; mkfifo d/pipe; ln -s ../../.. d/up", ["d"], is_refused=False)
    yield HostileOutput("mkfifo out", ["out"])
    yield HostileOutput(f"ln {secret} out || true", ["out"])
    yield HostileOutput("ln ../spec.msgpack out || true", ["out"])
    yield HostileOutput("ln ../inputs/0 out || true", ["out"])
    yield HostileOutput("cat /proc/self/environ >more", ["more"], is_refused=False)
    yield HostileOutput("p=.; for n in $(seq 240); do p=$p/d; done; mkdir -p $p", ["d"])
