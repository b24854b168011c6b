"""inspect: the tree as it is drawn, one server, its trace; what is asked of the agent and what is refused."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import click
import pytest

from actorgrid.cli import inspect as inspect_command
from actorgrid.cli import tree as tree_module
from actorgrid.cli.tree import fitting, rows_of, server_lines, tree_lines
from actorgrid.errors import CallTimeout, NoSuchActor, NotFound, NotSupported

from .conftest import Door, Invoke

DAY_S = 86_400.0
"""Ages are in days, shown to the hour, and just past one: how long tests take from their import on does not show."""


def node(name: str, **fields: Any) -> dict[str, Any]:
    handled = fields.pop("handled", 7)
    word = fields.pop("word", "running")
    given = {
        "name": name,
        "type": "worker",
        "kind": "m:C",
        "restart": "permanent",
        "state": "up",
        "pid": 4242,
        "address": f"admin.1.{name}",
        "restarts": 0,
        "last_exit": None,
        "started_at": time.time() - 3.17 * DAY_S,
        "inspect": {
            "name": name,
            "kind": "shop.till:Till",
            "pid": 4242,
            "address": f"admin.1.{name}",
            "state": word,
            "handled": handled,
            "held": 3 if word == "suspended" else 0,
            "dropped": 0,
            "open_calls": 1,
            "monitors": 2,
            "monitored_by": 1,
            "links": 4,
            "traced": False,
            "status": {"open": True, "where": "here"},
        },
        "error": None,
        "left_out": 0,
        "children": [],
    }
    return {**given, **fields}


def killed(ago_s: float = 1.09 * DAY_S) -> dict[str, Any]:
    return {"at": time.time() - ago_s, "reason": "killed by SIGKILL", "kind": "killed"}


def document(*children: dict[str, Any], **fields: Any) -> dict[str, Any]:
    tree = node("host", type="supervisor", children=list(children))
    return {"at": 1.0, "tree": tree, "truncated": False, "servers": {}, "attempts": [], **fields}


SHOP = node("shop", type="supervisor", children=[node("till", restarts=2, last_exit=killed()), node("door")])


def plainly(document: dict[str, Any], every: bool = False, width: int | None = None) -> list[str]:
    return [click.unstyle(line) for line in fitting(rows_of(document["tree"], every, False), width)]


def test_the_tree_is_drawn_with_a_line_for_each_server(call: Invoke, door: Door) -> None:
    door.on("GET /api/inspect", document(SHOP, node("gateway", handled=12)))
    result = call("inspect")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines() == [
        "NAME        STATE   PID    UP  RESTARTS  HANDLED  NOTE",
        "host        up     4242  3d4h         0        7",
        "├─ shop     up     4242  3d4h         0        7",
        "│  ├─ till  up     4242  3d4h         2        7  killed by SIGKILL, 1d2h ago",
        "│  └─ door  up     4242  3d4h         0        7",
        "└─ gateway  up     4242  3d4h         0       12",
    ]


def test_json_is_the_whole_document_in_one_line(call: Invoke, door: Door) -> None:
    given = document(SHOP)
    door.on("GET /api/inspect", given)
    result = call("inspect", "--json")
    assert result.stdout.count("\n") == 1 and json.loads(result.stdout) == given


@pytest.mark.parametrize(
    ("fields", "word", "note"),
    [
        ({"error": CallTimeout("till did not answer").to_dict(), "inspect": None}, "silent", "till did not answer"),
        ({"word": "suspended"}, "suspended", "3 held"),
        ({"state": "restarting", "pid": None, "inspect": None, "last_exit": killed()}, "restarting", "1d2h ago"),
        ({"state": "down", "pid": None, "inspect": None}, "down", ""),
        ({"error": NoSuchActor("it is gone").to_dict(), "inspect": None}, "up", "it is gone"),
        ({"left_out": 5}, "up", "5 children not listed"),
        ({"last_exit": {"at": 1.0, "reason": "no beat\nFile x", "kind": "hung"}}, "up", "hung: no beat, "),
    ],
)
def test_what_is_wrong_with_a_server_is_in_its_line(fields: dict[str, Any], word: str, note: str) -> None:
    line = plainly(document(node("till", **fields)))[2]
    assert line.split()[2] == word and note in line
    assert "File x" not in line


def test_drops_and_traces_are_noted() -> None:
    till = node("till")
    till["inspect"] |= {"dropped": 9, "traced": True}
    assert plainly(document(till))[2].endswith("9 dropped; traced")


def test_the_lines_stay_within_a_narrow_terminal() -> None:
    long = node("a_rather_long_name_of_a_server_of_this_host", last_exit={**killed(), "reason": "x" * 300})
    given = document(SHOP, long)
    for width in range(30, 200):
        lines = plainly(given, width=width)
        assert max(map(len, lines)) <= width
        assert len(lines) == 6 and all(" up" in line for line in lines[1:])
    assert lines[0].split() == [name.rstrip(">") for name in tree_module.COLUMNS]
    assert plainly(given, width=30)[0].split() == ["NAME", "STATE"]
    assert "x" * 300 in plainly(given)[-1], "nothing is cut off where nobody looks at a terminal"


def test_columns_leave_before_the_note_gets_unreadable() -> None:
    given = document(SHOP)
    assert "HANDLED" in plainly(given, width=75)[0] and "UP" not in plainly(given, width=66)[0].split()
    assert re.match(r"   ├─ till  up +killed by SIGKIL", plainly(given, width=46)[3])


def test_many_equal_dynamic_children_share_a_line() -> None:
    tasks = [node(f"task:{number}", handled=2) for number in range(1, 401)]
    tasks[7] |= {"restarts": 3, "last_exit": killed()}
    tasks[9] |= {"error": CallTimeout("it hangs").to_dict(), "inspect": None}
    tasks[11] |= {"inspect": None}
    given = document(node("pool", type="supervisor", children=tasks), node("gateway"))
    lines = plainly(given)
    assert len(lines) == 7
    assert lines[3].split()[:6] == ["│", "├─", "task", "x", "398", "up"] and lines[3].split()[-1] == "794+"
    assert "task:8 " in lines[4] and "task:10 " in lines[5] and "silent" in lines[5]
    assert len(plainly(given, every=True)) == 404
    assert "398 equal children" in tree_lines(given, every=False)[-1]
    assert "--all" not in "".join(tree_lines(given, every=True))


def test_few_children_and_static_ones_are_never_folded() -> None:
    static = [node(f"server_{number}") for number in range(10)]
    dynamic = [node(f"task:{number}") for number in range(3)]
    assert len(plainly(document(*static, *dynamic))) == 15


def test_children_that_died_alike_share_a_line_with_the_latest_end() -> None:
    tasks = [node(f"task:{number}", restarts=1, last_exit=killed((number + 0.1) * DAY_S)) for number in range(1, 6)]
    lines = plainly(document(*tasks))
    assert len(lines) == 3 and "task x 5" in lines[2] and lines[2].endswith("killed by SIGKILL, 1d2h ago")


def test_a_tree_that_was_cut_off_says_so(call: Invoke, door: Door) -> None:
    door.on("GET /api/inspect", document(SHOP, truncated=True))
    assert "not all children are listed" in call("inspect").stdout


def test_a_terminal_without_unicode_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_module, "speaks_unicode", lambda: False)
    lines = tree_lines(document(SHOP, node("gäte", last_exit={**killed(), "reason": "é"})), every=False)
    assert lines[3].startswith("|   |-- till") and lines[5].startswith("`-- g")
    assert "├" not in "".join(lines)


def test_states_have_colours_and_names_do_not() -> None:
    lines = fitting(rows_of(document(node("up"))["tree"], False, False), 120)
    assert re.search(r"└─ up  \x1b\[32mup\x1b\[0m", lines[2])


def server(**fields: Any) -> dict[str, Any]:
    attributes = {"coins": "{'penny': 3}", "token": "(hidden)"}
    return {**node("till", **fields), "attributes": attributes}


def test_one_server_is_shown_with_what_it_says(call: Invoke, door: Door) -> None:
    door.on("GET /api/inspect/till", server(restarts=1, last_exit=killed()))
    result = call("inspect", "till")
    lines = result.stdout.splitlines()
    assert lines[0] == "till up"
    assert "  process   pid 4242, address admin.1.till" in lines
    assert "  last end  killed by SIGKILL, 1d2h ago" in lines
    assert "  messages  7 handled, 1 open calls" in lines
    assert "  watching  2 monitors, 4 links, monitored by 1" in lines
    assert "  open   true" in lines and "penny" not in result.stdout
    assert "  coins  {'penny': 3}" in call("inspect", "till", "--state").stdout.splitlines()
    assert json.loads(call("inspect", "till", "--json").stdout)["attributes"]["token"] == "(hidden)"


def test_a_server_that_hangs_or_is_down_is_still_shown(call: Invoke, door: Door) -> None:
    silent = CallTimeout("till did not answer Inspect in 2 s").to_dict()
    door.on("GET /api/inspect/till", {**server(error=silent, inspect=None), "attributes": None})
    result = call("inspect", "till", "--state")
    assert result.exit_code == 0 and result.stdout.startswith("till silent\n")
    assert "silent   till did not answer" in result.stdout
    down = NoSuchActor("till has no process now").to_dict()
    shown = {**server(error=down, inspect=None, state="down", pid=None, started_at=None), "attributes": None}
    door.on("GET /api/inspect/till", shown)
    assert "process  none now" in call("inspect", "till").stdout


def test_values_of_several_lines_go_on_below_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = {"at": time.time(), "reason": "boom\n  File x\nError", "kind": "error"}
    answer = server(last_exit=trace)
    answer["attributes"]["big"] = "one\ntwo" + "x" * 100
    lines = [click.unstyle(line) for line in server_lines(answer, state=True)]
    at = lines.index("  big    one")
    assert lines[at + 1] == "         two" + "x" * 100
    monkeypatch.setattr(tree_module, "terminal_width", lambda: 40)
    assert max(len(click.unstyle(line)) for line in server_lines(answer, state=True)) == 40


def test_suspend_and_resume_say_how_it_stands(call: Invoke, door: Door) -> None:
    door.on("POST /api/inspect/till/suspend", {"name": "till", "state": "suspended", "until": time.time() + 5})
    door.on("POST /api/inspect/till/resume", {"name": "till", "state": "running", "until": None})
    result = call("inspect", "till", "--suspend", "5")
    assert "till is suspended until" in result.stdout and "--resume" in result.stdout
    assert door.asked[-1][2] == {"for_s": 5.0}
    call("inspect", "till", "--suspend")
    assert door.asked[-1][2] == {"for_s": 60.0}
    assert call("inspect", "till", "--resume").stdout == "till goes on\n"
    assert json.loads(call("inspect", "till", "--resume", "--json").stdout)["state"] == "running"


def test_new_code_is_told_with_its_version(call: Invoke, door: Door) -> None:
    answer = {"name": "till", "module": "shop.till", "old_version": "", "new_version": "2"}
    door.on("POST /api/inspect/till/code", answer)
    result = call("inspect", "till", "--change-code")
    assert result.stdout == "till has the code of shop.till now: version 2, before without a number\n"
    assert json.loads(call("inspect", "till", "--change-code", "--json").stdout) == answer


def event(clock_s: float, way: str, message: str) -> dict[str, Any]:
    given = {"at": 1_700_000_000.125 + clock_s, "clock_s": clock_s, "way": way}
    return {**given, "kind": "call", "peer": "door", "message": message}


def test_a_trace_is_started_shown_and_ended(call: Invoke, door: Door) -> None:
    door.on("POST /api/inspect/till/trace", lambda _query, body: {"name": "till", "events": body["events"]})
    assert "keeps its last 20 messages" in call("inspect", "till", "--trace", "20").stdout
    assert call("inspect", "till", "--trace", "0").stdout == "till is traced no more\n"
    assert json.loads(call("inspect", "till", "--trace", "3", "--json").stdout) == {"name": "till", "events": 3}
    events = [event(1, "in", "Pay(3)"), event(2, "out", "'thanks'")]
    door.on("GET /api/inspect/till/trace", {"name": "till", "traced": True, "events": events})
    lines = call("inspect", "till", "--trace").stdout.splitlines()
    assert [line.partition(" ")[2] for line in lines] == ["<- call   door: Pay(3)", "-> call   door: 'thanks'"]
    assert re.match(r"\d\d:\d\d:\d\d\.125 ", lines[0])
    assert json.loads(call("inspect", "till", "--trace", "--json").stdout)["events"] == events


def test_the_trace_of_a_server_that_has_none_says_how_to_start_one(call: Invoke, door: Door) -> None:
    door.on("GET /api/inspect/till/trace", {"name": "till", "traced": False, "events": []})
    result = call("inspect", "till", "--trace")
    assert result.exit_code == 0 and result.stdout == ""
    assert "actorgrid inspect till --trace 100" in result.stderr


def test_a_watched_trace_prints_each_message_once(call: Invoke, door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_command, "WATCH_INTERVAL_S", 0.0)
    kept = [event(1, "in", "a"), event(2, "in", "b"), event(3, "in", "c")]
    answers = iter([(True, kept[:1]), (True, kept[:2]), (True, kept[1:]), (False, [])])

    def answer(_query: Any, _body: Any) -> dict[str, Any]:
        traced, events = next(answers)
        return {"name": "till", "traced": traced, "events": events}

    door.on("GET /api/inspect/till/trace", answer)
    door.on("POST /api/inspect/till/trace", {"name": "till", "events": 5})
    result = call("inspect", "till", "--trace", "5", "--watch", "--json")
    assert [json.loads(line)["message"] for line in result.stdout.splitlines()] == ["a", "b", "c"]


def test_a_watched_tree_tells_changes_where_it_is_not_redrawn(
    call: Invoke, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspect_command, "WATCH_INTERVAL_S", 0.0)
    first, second = document(SHOP, node("gateway")), document(node("gateway", pid=5000, last_exit=killed()))
    answers = [first, first, second]

    def answer(_query: Any, _body: Any) -> dict[str, Any]:
        if len(answers) == 1:
            door.fail("GET /api/inspect", NotFound("the agent has left"))
        return answers.pop(0)

    door.on("GET /api/inspect", answer)
    result = call("inspect", "--watch")
    assert result.exit_code == 4 and "the agent has left" in result.stderr
    lines = [line.partition(" ")[2] for line in result.stdout.splitlines()]
    assert lines[:3] == ["host up 4242", "host/shop up 4242", "host/shop/till up 4242 killed by SIGKILL"]
    assert lines[5] == "host/gateway up 5000 killed by SIGKILL"
    assert set(lines[6:]) == {"host/shop gone", "host/shop/till gone", "host/shop/door gone"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--state"], "--state is for one server"),
        (["--suspend", "5"], "--suspend is for one server"),
        (["till", "--suspend", "5", "--resume"], "--suspend and --resume do not go together"),
        (["till", "--resume", "--watch"], "--resume and --watch do not go together"),
        (["till", "--suspend", "long"], "--suspend takes a number"),
        (["till", "--suspend", "nan"], "--suspend takes a number"),
        (["till", "--trace", "x"], "--trace takes a number"),
    ],
)
def test_wrong_use_is_refused_before_anything_is_asked(call: Invoke, door: Door, words: list[str], says: str) -> None:
    result = call("inspect", *words)
    assert result.exit_code == 2 and says in result.stderr and not door.asked


def test_what_the_agent_refuses_comes_with_its_hint_and_code(call: Invoke, door: Door) -> None:
    door.fail("GET /api/inspect/gatewya", NotFound("no such server", hint="did you mean gateway?"))
    result = call("inspect", "gatewya")
    assert result.exit_code == 4 and "did you mean gateway?" in result.stderr
    door.fail("POST /api/inspect/gateway/suspend", NotSupported("not this one", found="it could not answer"))
    result = call("inspect", "gateway", "--suspend")
    assert result.exit_code == 2 and "it could not answer" in result.stderr


def test_names_with_any_letters_reach_the_agent(call: Invoke, door: Door) -> None:
    door.on("GET /api/inspect/task%3A1%2Fx", server())
    assert call("inspect", "task:1/x").exit_code == 0
