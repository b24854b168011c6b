"""``inspect``: the supervision tree, one server in full, its trace; suspend and resume."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import click

from .call import CommandContext, host_command
from .printing import say

if TYPE_CHECKING:
    from actorgrid.supervisors.process.inspecting import SortKey

WATCH_INTERVAL_S = 1.0
SHOW = "show"


@click.command()
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--all", "every", is_flag=True, help="Each child a line, also where many are equal.")
@click.option("--state", is_flag=True, help="NAME's attributes too.")
@click.option(
    "--trace",
    is_flag=False,
    flag_value=SHOW,
    metavar="[N]",
    help="Show NAME's trace; with N: keep its last N; 0: end it.",
)
@click.option(
    "--suspend", is_flag=False, flag_value="60", metavar="[SECONDS]", help="Have NAME handle nothing for so long [60]."
)
@click.option("--resume", is_flag=True, help="Have NAME go on.")
@click.option("--change-code", is_flag=True, help="Have NAME take over the code that is installed now.")
@click.option("--watch", is_flag=True, help="Go on, once a second, until interrupted.")
@click.option("--processes", "group", metavar="SET", help="The busiest light processes of a set, over all hosts.")
@click.option(
    "--by",
    type=click.Choice(["mailbox", "reductions", "memory"]),
    default="reductions",
    show_default=True,
    help="With --processes: by which they are busy.",
)
@host_command
def command(
    call: CommandContext,
    name: str | None,
    every: bool,
    state: bool,
    trace: str | None,
    suspend: str | None,
    resume: bool,
    change_code: bool,
    watch: bool,
    group: str | None,
    by: SortKey,
) -> None:
    """Draw the supervision tree; look into one server.

    NAME is a child's name or address in the tree, or a name that a server registered. Suspending is for looking at
    what waits for a server: nobody else is told, and it goes on by itself after SECONDS (600 at most). The gateway
    and supervisors are not suspended.

    --change-code is for a mended handler: NAME keeps its state and becomes one of the class that its file has now; what
    changes messages needs a restart of the host, and is refused. If the change fails or hangs, NAME is as it was.

    With --watch on a terminal the tree is redrawn; elsewhere each change is a line (with --json: a document a line).
    With --trace --watch, messages are printed as they go by.
    """
    given = {"--state": state, "--trace": trace, "--suspend": suspend, "--resume": resume, "--change-code": change_code}
    asked = [flag for flag, value in given.items() if value]
    if name is None and asked:
        raise click.UsageError(f"{asked[0]} is for one server: actorgrid inspect NAME {asked[0]}")
    if group is not None:
        if name is not None or asked or every:
            raise click.UsageError("--processes goes with --by and --watch alone")
        from .process_top import show_processes

        show_processes(call, group, by, watch)
        return
    if len(asked) > 1:
        raise click.UsageError(f"{' and '.join(asked)} do not go together")
    if suspend is not None or resume or change_code:
        if watch:
            raise click.UsageError(f"{asked[0]} and --watch do not go together")
        if change_code:
            _change_code(call, str(name))
        else:
            _hold(call, str(name), None if resume else _number("--suspend", suspend))
    elif name is None:
        _tree(call, every, watch)
    elif trace is not None:
        _trace(call, name, None if trace == SHOW else _number("--trace", trace), watch)
    else:
        _server(call, name, state, watch)


def _number(option: str, text: str | None) -> float:
    try:
        number = float(text or "")
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise click.UsageError(f"{option} takes a number, not {text!r}; the name stands before it")
    return number


def _change_code(call: CommandContext, name: str) -> None:
    done = call.http.post(_path(name, "/code"), {})
    old, new = (done[f"{which}_version"] or "without a number" for which in ("old", "new"))
    call.answer(done, f"{done['name']} has the code of {done['module']} now: version {new}, before {old}")


def _path(name: str, action: str = "") -> str:
    from actorgrid.client.http import segment

    return f"/api/inspect/{segment(name)}{action}"


# -- the tree


def _tree(call: CommandContext, every: bool, watch: bool) -> None:
    from .show import on_terminal
    from .tree import tree_lines

    seen: dict[str, str] = {}
    drawing = on_terminal() and not call.json
    while True:
        answer = call.http.get("/api/inspect")
        if call.json:
            call.document(answer)
        elif not watch:
            say("\n".join(tree_lines(answer, every)))
        elif drawing:
            _redraw(tree_lines(answer, every))
        else:
            seen = _tell_changes(answer["tree"], seen)
        if not watch:
            return
        time.sleep(WATCH_INTERVAL_S)


def _redraw(lines: list[str]) -> None:
    click.clear()
    say("\n".join([f"{time.strftime('%H:%M:%S')}  Ctrl-C leaves", *lines]))


def _tell_changes(tree: dict[str, Any], seen: dict[str, str]) -> dict[str, str]:
    """Print a line for each server that changed or is gone; gives the present state of all."""
    from .tree import note_of, state_of

    now: dict[str, str] = {}
    waiting = [(tree, "")]
    while waiting:
        node, above = waiting.pop()
        path = f"{above}/{node['name']}" if above else str(node["name"])
        now[path] = f"{state_of(node)} {node['pid'] or '-'} {note_of(node, aged=False)}".rstrip()
        if seen.get(path) != now[path]:
            say(f"{time.strftime('%H:%M:%S')} {path} {now[path]}")
        waiting += [(child, path) for child in reversed(node["children"])]
    for path in seen.keys() - now.keys():
        say(f"{time.strftime('%H:%M:%S')} {path} gone")
    return now


# -- one server


def _server(call: CommandContext, name: str, state: bool, watch: bool) -> None:
    from .show import on_terminal
    from .tree import server_lines

    while True:
        answer = call.http.get(_path(name))
        if call.json:
            call.document(answer)
        elif watch and on_terminal():
            _redraw(server_lines(answer, state))
        else:
            say("\n".join(server_lines(answer, state)))
        if not watch:
            return
        time.sleep(WATCH_INTERVAL_S)


def _hold(call: CommandContext, name: str, for_s: float | None) -> None:
    if for_s is None:
        answer = call.http.post(_path(name, "/resume"))
    else:
        answer = call.http.post(_path(name, "/suspend"), {"for_s": for_s})
    if call.json:
        call.document(answer)
    elif for_s is None:
        say(f"{answer['name']} goes on")
    else:
        until = time.strftime("%H:%M:%S", time.localtime(answer["until"]))
        say(f"{answer['name']} is suspended until {until}; sooner: actorgrid inspect {name} --resume")


def _trace(call: CommandContext, name: str, events: float | None, watch: bool) -> None:
    if events is not None:
        wanted = int(events) if events.is_integer() else events
        answer = call.http.post(_path(name, "/trace"), {"events": wanted})
        if not watch:
            kept = f"keeps its last {answer['events']} messages; actorgrid inspect {name} --trace shows them"
            call.answer(answer, f"{answer['name']} {kept if answer['events'] else 'is traced no more'}")
            return
    _show_trace(call, name, watch)


def _show_trace(call: CommandContext, name: str, watch: bool) -> None:
    from .tree import event_line

    last_s = 0.0
    while True:
        answer = call.http.get(_path(name, "/trace"))
        new = [event for event in answer["events"] if event["clock_s"] > last_s]
        last_s = max((event["clock_s"] for event in new), default=last_s)
        if call.json and not watch:
            call.document(answer)
        for event in new if watch or not call.json else []:
            call.answer(event, event_line(event))
        if not answer["traced"] and not call.json:
            say(f"{answer['name']} is not traced: actorgrid inspect {name} --trace 100", err=True)
        if not watch or not answer["traced"]:
            return
        time.sleep(WATCH_INTERVAL_S)
