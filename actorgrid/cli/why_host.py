"""``why host``: why a host is as it is, what was done about it, and what would be next."""

from __future__ import annotations

import time
from typing import Any

import click

from .call import CommandContext
from .host_names import find_host
from .printing import say, visible
from .show import aligned, coloured, folded, lined_up, say_folded, span, terminal_width

INDENT = "  "
EVENTS_SHOWN, ACTIONS_SHOWN, EVIDENCE_SHOWN = 8, 5, 3


def explain_host(call: CommandContext, host: str) -> None:
    """Show the answer for the host that *host* means."""
    from actorgrid.client.http import segment

    meant = find_host(call.http.get("/api/hosts")["hosts"], host)
    answer = call.http.get(f"/api/hosts/{segment(meant['node_id'])}/why")
    if call.json:
        call.document(answer)
        return
    now = time.time()
    say_folded(f"{answer['hostname']} ({answer['host_id'][:8]}) {coloured(answer['condition'])}: {answer['headline']}")
    for section in (_checks(answer, now), _facts(answer, now), _history(answer, now), _actions(answer, now)):
        if section:
            say()
            say("\n".join(INDENT + line for line in section))
    hints = answer["try"] or ["nothing to do"]
    say()
    say(INDENT + click.style("what to try", bold=True))
    width = terminal_width()
    for hint in hints:
        first, *more = folded(hint, width and width - len(INDENT) - 2)
        say("\n".join([f"{INDENT}- {first}", *(f"{INDENT}  {line}" for line in more)]))


def _lines(columns: list[str], rows: list[list[str]], spare: list[str]) -> list[str]:
    width = terminal_width()
    rows = [[visible(cell, cell=True) for cell in row] for row in rows]
    return lined_up(columns, rows, width and width - len(INDENT), spare)


def _checks(answer: dict[str, Any], now: float) -> list[str]:
    bad = [each for each in answer["checks"] if each["status"] != "ok"]
    well = len(answer["checks"]) - len(bad)
    rows = [
        [each["name"], each["status"], span(now - each["since"]) if each["since"] else "-", _evidence(each["evidence"])]
        for each in bad
    ]
    lines = _lines(["CHECK", "IS", "FOR>", "FIGURES"], rows, ["FIGURES", "FOR"]) if rows else []
    return [*lines, f"{well} of {len(answer['checks'])} checks are well"] if answer["checks"] else []


def _evidence(evidence: dict[str, Any]) -> str:
    shown = [f"{name}={value:g}" if isinstance(value, float | int) else str(value) for name, value in evidence.items()]
    return " ".join(shown[:EVIDENCE_SHOWN])


def _facts(answer: dict[str, Any], now: float) -> list[str]:
    rows = [["failures", f"{answer['failures']} count; penalty for flapping {answer['penalty']:.0f}"]]
    if answer["suppressed"]:
        rows.append(["flapping", f"not taken for recovered for {span(answer['reuse_in_s'])} more"])
    window = answer["maintenance"]
    if window is not None:
        rows.append(
            ["maintenance", f"{span(window['until'] - now)} left, by {window['by']}: {window['reason'] or '-'}"]
        )
    if answer["draining"]:
        rows.append(["draining", "it gets nothing new"])
    for witness in answer["witnesses"]:
        rows.append(["unreachable", f"from {witness['hostname']}: {witness['why'] or 'no answer'}"])
    following = answer["next"]
    if following["action"]:
        when = f" after {following['more_failures']} more failures" if following["more_failures"] else ""
        when = f" in {span(following['at'] - now)}" if following["at"] and following["at"] > now else when
        held = f"; held back: {following['held_back']}" if following["held_back"] else ""
        rows.append(["next", f"{following['action']} by {following['strategy']}{when}{held}"])
    elif following["held_back"]:
        rows.append(["next", f"nothing: {following['held_back']}"])
    return aligned([[name, visible(text, cell=True)] for name, text in rows], ["", ""])


def _history(answer: dict[str, Any], now: float) -> list[str]:
    rows = [
        [span(now - each["at"]), each["check"], each["word"], each["reason"][:60]]
        for each in answer["history"][:EVENTS_SHOWN]
    ]
    return _lines(["AGO>", "CHECK", "WAS", "WHY"], rows, ["WHY", "AGO"]) if rows else []


def _actions(answer: dict[str, Any], now: float) -> list[str]:
    rows = [
        [
            span(now - each["at"]),
            each["action"],
            each["outcome"] or "under way",
            each["reason"][:60],
            each["found"][:60],
        ]
        for each in answer["actions"][:ACTIONS_SHOWN]
    ]
    return _lines(["AGO>", "DONE", "HOW", "WHY", "FOUND"], rows, ["FOUND", "WHY", "AGO"]) if rows else []
