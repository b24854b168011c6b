"""Writes ``answers.json.xz``: what the ledger of the version before answered to a log, and the digest after each entry.

It is run *with* the version before, and takes the commands of this tree's ``tests/hostile``, of version 1, well formed
and mutated from a seed. Entries that the version before could not bear are left out.

    PYTHONSAFEPATH=1 PYTHONPATH=TREE PYTHON tests/system/version_before/answers.py tests/hostile FILE
"""

from __future__ import annotations

import importlib.util
import json
import lzma
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

SEED, ROUNDS, FRESH_EVERY, HOSTILE = 11, 12, 4, 0.7
ODD = (None, True, -1, 0, 1, 7, 2**31, 2**53, 1.5, "", "x", "a.1", "h1", "\x1b[31m", [], [None], [1, 1], {}, {"": None})


class Old(dict[str, Any]):
    """A command of the version before, which was a plain map from the beginning."""

    def to_plain(self) -> dict[str, Any] | None:
        return dict(self) or None


def _made(maker: Callable[..., dict[str, Any]], *given: Any, **named: Any) -> Old:
    return Old(maker(*given, **named))


def under_its_new_name(folder: Path) -> tuple[Any, Any]:
    """``examples`` and ``mutations`` of *folder*, which name the ledger's modules as they are called since."""
    room = ModuleType("actorgrid.actors.ledger")
    sys.modules[room.__name__] = room
    for new, old in {"commands": "commands", "command": "command_checks", "state": "ledger"}.items():
        module = importlib.import_module(f"actorgrid.actors.consensus.{old}")
        sys.modules[f"{room.__name__}.{new}"] = module
        setattr(room, new, module)
    room.commands.Command = Old
    for maker in [name for name, value in vars(room.commands).items() if callable(value) and name.islower()]:
        setattr(room.commands, maker.title().replace("_", ""), partial(_made, getattr(room.commands, maker)))
    for later in ("TakeSuccess", "EditJob"):
        setattr(room.commands, later, lambda *_given, **_facts: Old())
    found = []
    for name in ("mutations", "examples"):
        spec = importlib.util.spec_from_file_location(f"tests.hostile.{name}", folder / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found.append(module)
    return found[1], found[0]


class Recorder:
    """A ledger that notes what it answers."""

    def __init__(self) -> None:
        self.entries: list[Any] = []
        self._kind = sys.modules["actorgrid.actors.ledger.state"].Ledger
        self._ledger = self._kind()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def begin(self) -> None:
        self.entries.append(None)
        self._ledger = self._kind()

    def apply(self, _index: int, command: Any, session: str, number: int) -> Any:
        plain, before = json.loads(json.dumps(command, allow_nan=False)), self._ledger.snapshot()
        try:
            outcome = self._ledger.apply(self._ledger.index + 1, plain, session, number)
        except (AssertionError, LookupError, TypeError, ValueError):  # one of those that ended the version before
            self._ledger = self._kind.restore(before)
            return None
        error = None if outcome.error is None else outcome.error.to_dict()
        self.entries.append([session, number, plain, outcome.result, error, self._ledger.digest()["root"]])
        return outcome


def main(folder: Path, file: Path) -> None:
    examples, mutations = under_its_new_name(folder)
    dice, ledger = Random(SEED), Recorder()
    examples.furnished(ledger)
    for round in range(1, ROUNDS + 1):
        for place in range(len(examples.examples(ledger))):
            command = examples.examples(ledger)[place]
            if command is not None and round > 1 and dice.random() < HOSTILE:
                command = mutations.mutated(command, dice, ODD)
            if isinstance(command, dict):
                ledger.apply(0, command, f"s{place % 7}", round * 1000 + place)
        if round % FRESH_EVERY == 0:
            ledger.begin()
            examples.furnished(ledger)
    text = json.dumps(ledger.entries, separators=(",", ":"))
    file.write_bytes(lzma.compress(text.encode()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
