"""Loops of commands, as people write them: ``repeat: {until: WORD, rounds: N}``. Each round becomes a step.

A round runs if the one before it printed another word than the loop waits for. So what is done stays done whatever
dies, rounds are listed one by one, and there are never more of them than was said before anything ran. The step itself
becomes the merge of its rounds: it has the word and the files of the last that ran.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actorgrid.errors import InvalidGraph, UnboundedLoop

ROUNDS_MAX = 1_000
ROUND = "ACTORGRID_ROUND"
"""The variable in which a command finds the number of its round, from 1 on."""
_OF_ALL = ("id", "repeat", "inputs", "when", "after", "env", "trigger")
"""What is not the same in each round."""


def with_rounds(document: Mapping[str, Any]) -> dict[str, Any]:
    """A graph's document with the rounds of its loops in place of these. Raises UnboundedLoop, InvalidGraph."""
    steps = document.get("steps")
    if not isinstance(steps, list) or not any(isinstance(step, dict) and "repeat" in step for step in steps):
        return dict(document)
    made: list[Any] = []
    for step in steps:
        made += _rounds(step) if isinstance(step, dict) and "repeat" in step else [step]
    return {**document, "steps": made}


def round_id(id: str, number: int) -> str:
    """The id of a round."""
    return f"{id}[{number}]"


def _rounds(step: Mapping[str, Any]) -> list[dict[str, Any]]:
    id, repeat = str(step.get("id", "")), step["repeat"]
    if not isinstance(repeat, Mapping) or "until" not in repeat or repeat.keys() - {"until", "rounds"}:
        raise InvalidGraph(
            f"step {id}: repeat has the word that ends it, and how many rounds there are at most",
            asked=str(repeat)[:200],
            hint="repeat: {until: ready, rounds: 20}",
        )
    until, rounds = repeat["until"], repeat.get("rounds")
    if rounds is None:
        raise UnboundedLoop(
            f"step {id}: the loop has no bound",
            asked=f"repeat until {until!r}",
            hint=f"say how many rounds there are at most, up to {ROUNDS_MAX}: rounds: 20",
        )
    if not isinstance(rounds, int) or isinstance(rounds, bool) or not 1 <= rounds <= ROUNDS_MAX:
        raise UnboundedLoop(
            f"step {id}: a loop has a bound", asked=f"rounds: {rounds}"[:200], hint=f"a number from 1 to {ROUNDS_MAX}"
        )
    if "command" not in step:
        raise InvalidGraph(f"step {id}: what is repeated is a command", hint="dag.loop repeats a function in Python")
    same = {name: value for name, value in step.items() if name not in _OF_ALL}
    when, inputs = _listed(step.get("when")), _listed(step.get("inputs"))
    made: list[dict[str, Any]] = []
    for number in range(1, rounds + 1):
        own = {**same, "id": round_id(id, number), "env": {**(step.get("env") or {}), ROUND: str(number)}}
        if number == 1:
            own |= {name: step[name] for name in ("when", "after", "trigger") if name in step}
            taken = inputs
        else:
            before = round_id(id, number - 1)
            own["when"] = [*when, {"step": before, "word": until, "negated": True}]
            taken = [*inputs, before] if step.get("outputs") else inputs
        made.append({**own, "inputs": taken} if taken else own)
    return [*made, {"id": id, "kind": "merge", "inputs": [each["id"] for each in made], "last": True}]


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]
