"""``state``: the shared state, from a shell."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import click

from . import candidates
from .call import CommandContext, host_command
from .printing import say
from .show import progress, size, table
from .suggest import suggestion

SHOWN = 20
"""Keys that ``load`` names for people."""
TYPE_OF = {
    "increment": "pn_counter",
    "decrement": "pn_counter",
    "add": "or_set",
    "remove": "or_set",
    "put_field": "or_map",
    "remove_field": "or_map",
    "enable": "ew_flag",
    "disable": "ew_flag",
}
"""The type of a batch's change that names none."""


class StateCommands(click.Group):
    """With a suggestion for a misspelt name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but for the message."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            raise click.UsageError(
                f"there is no command '{ctx.info_name} {args[0]}'.{suggestion(args[0], self.commands)}", ctx
            )
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Alone, it answers with its help; that is no mistake."""
        if not args:
            say(ctx.get_help())
            ctx.exit(0)
        return super().parse_args(ctx, args)


@click.group(cls=StateCommands)
def command() -> None:
    """Read and change the shared state, which all hosts of a cluster have.

    A write is on this host's disk when the command ends, and reaches the others some milliseconds later; hosts that
    cannot reach each other go on, and agree again when they can. Values are JSON; what is not valid JSON is taken as
    text: 5 is a number, five a word, '"5"' a text. A key keeps the type of its first write.
    """


def _durability(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of commands that write."""
    within = click.option(
        "--within",
        "within_s",
        type=click.FloatRange(0, 60, min_open=True),
        default=5.0,
        show_default=True,
        metavar="SECONDS",
        help="How long to wait for a majority; the write stays in any case.",
    )
    whose = click.option(
        "--durability",
        type=click.Choice(["host", "majority"]),
        default="host",
        show_default=True,
        help="Whose disks it has to be on when the command ends: this host's, or a majority's.",
    )
    return whose(within(function))


def _ttl(function: Callable[..., Any]) -> Callable[..., Any]:
    """The option of commands that put a value."""
    option = click.option(
        "--ttl", "ttl_s", type=click.FloatRange(0, min_open=True), metavar="SECONDS", help="It ends so long after."
    )
    return option(function)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _state(call: CommandContext) -> Any:
    from actorgrid.client.state import SharedState

    return SharedState(call.http)


def _answer(call: CommandContext, key: str, value: Any) -> None:
    call.answer({"key": key, "value": value}, _text(value))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@command.command("get")
@click.argument("key", shell_complete=candidates.state_keys)
@host_command
def get(call: CommandContext, key: str) -> None:
    """Print a key's value."""
    entry = _state(call).entry(key)
    call.answer(entry, _text(entry["value"]))


@command.command("put")
@click.argument("key", shell_complete=candidates.state_keys)
@click.argument("value")
@click.option("--type", "kind", type=click.Choice(["lww_register", "mv_register"]), default="lww_register")
@_ttl
@_durability
@host_command
def put(
    call: CommandContext, key: str, value: str, kind: str, ttl_s: float | None, durability: Any, within_s: float
) -> None:
    """Set a register."""
    found = _state(call).put(key, _value(value), kind, ttl_s=ttl_s, durability=durability, within_s=within_s)
    _answer(call, key, found)


@command.command("incr", context_settings={"ignore_unknown_options": True})
@click.argument("key", shell_complete=candidates.state_keys)
@click.argument("by", type=int, default=1)
@_durability
@host_command
def incr(call: CommandContext, key: str, by: int, durability: Any, within_s: float) -> None:
    """Add to a counter; a negative number takes away."""
    state = _state(call)
    change = state.increment if by >= 0 else state.decrement
    _answer(call, key, change(key, abs(by), durability=durability, within_s=within_s))


@command.command("add")
@click.argument("key", shell_complete=candidates.state_keys)
@click.argument("value")
@_durability
@host_command
def add(call: CommandContext, key: str, value: str, durability: Any, within_s: float) -> None:
    """Add to a set."""
    _answer(call, key, _state(call).add_to_set(key, _value(value), durability=durability, within_s=within_s))


@command.command("remove")
@click.argument("key", shell_complete=candidates.state_keys)
@click.argument("value")
@_durability
@host_command
def remove(call: CommandContext, key: str, value: str, durability: Any, within_s: float) -> None:
    """Remove from a set."""
    _answer(call, key, _state(call).remove_from_set(key, _value(value), durability=durability, within_s=within_s))


@command.command("list")
@click.argument("prefix", default="", shell_complete=candidates.state_keys)
@click.option("--limit", type=click.IntRange(1, 10_000), default=1000, show_default=True)
@host_command
def list_(call: CommandContext, prefix: str, limit: int) -> None:
    """List keys under a prefix."""
    entries = _state(call).list(prefix, limit)
    if call.json:
        call.document({"entries": entries})
        return
    rows = [[entry["key"], entry["type"], _text(entry["value"])] for entry in entries]
    table(["KEY", "TYPE", "VALUE"], rows, "no keys" + (f" under {prefix}" if prefix else ""))


@command.command("watch")
@click.argument("prefix", default="", shell_complete=candidates.state_keys)
@click.option("--initial", is_flag=True, help="First what is there.")
@click.option("--resume", metavar="ID", help="Go on behind the change with this id (of --json).")
@host_command
def watch(call: CommandContext, prefix: str, initial: bool, resume: str | None) -> None:
    """Print changes under a prefix, until interrupted.

    With --json each line is a document of its own.
    """

    def resynced(reason: str) -> None:
        say(f"begins anew: {reason}", err=True)

    for entry in _state(call).watch(prefix, initial=initial, after=resume, on_resync=resynced):
        gone = "(gone)" if entry.get("deleted") else _text(entry["value"])
        call.answer(entry, f"{entry['key']} {gone}")


@command.command("delete")
@click.argument("key", shell_complete=candidates.state_keys)
@_durability
@host_command
def delete(call: CommandContext, key: str, durability: Any, within_s: float) -> None:
    """Remove a key, whatever its type: all that this host has seen of it."""
    _state(call).delete(key, durability=durability, within_s=within_s)
    call.answer({"key": key, "deleted": True}, f"{key} is gone")


@command.command("field")
@click.argument("key", shell_complete=candidates.state_keys)
@click.argument("field")
@click.argument("value", required=False)
@_ttl
@_durability
@host_command
def field(
    call: CommandContext, key: str, field: str, value: str | None, ttl_s: float | None, durability: Any, within_s: float
) -> None:
    """Set a field of a map; without a value, remove it."""
    state = _state(call)
    if value is None:
        found = state.remove_field(key, field, durability=durability, within_s=within_s)
    else:
        found = state.put_field(key, field, _value(value), ttl_s=ttl_s, durability=durability, within_s=within_s)
    _answer(call, key, found)


@command.command("flag")
@click.argument("key", shell_complete=candidates.state_keys)
@click.argument("switch", type=click.Choice(["on", "off"]))
@_durability
@host_command
def flag(call: CommandContext, key: str, switch: str, durability: Any, within_s: float) -> None:
    """Raise or lower a flag."""
    state = _state(call)
    change = state.enable if switch == "on" else state.disable
    _answer(call, key, change(key, durability=durability, within_s=within_s))


@command.command("compare")
@click.argument("key", shell_complete=candidates.state_keys)
@click.argument("value")
@click.option("--expected", metavar="VALUE", help="The value that the key must have; without it, there must be no key.")
@_ttl
@_durability
@host_command
def compare(
    call: CommandContext,
    key: str,
    value: str,
    expected: str | None,
    ttl_s: float | None,
    durability: Any,
    within_s: float,
) -> None:
    """Set a register that has the expected value on this host, or is not there.

    Another host may take another write at the same time.
    """
    state, more = _state(call), {"ttl_s": ttl_s, "durability": durability, "within_s": within_s}
    if expected is None:
        found = state.put_if_absent(key, _value(value), **more)
    else:
        found = state.compare_and_put(key, _value(expected), _value(value), **more)
    _answer(call, key, found)


@command.command("batch")
@click.argument("file", type=click.File(encoding="utf-8"))
@_durability
@host_command
def batch(call: CommandContext, file: Any, durability: Any, within_s: float) -> None:
    """Apply the changes of a file, all or none.

    One JSON object a line, with key, operation, and what it takes: {"key": "k", "operation": "put", "value": 1}. They
    are in one commit of this host. - is stdin.
    """
    from actorgrid.client.state_batch import StateBatch
    from actorgrid.errors import BadRequest

    changes = StateBatch()
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            change = json.loads(line)
        except ValueError as error:
            raise BadRequest(f"line {number} is not JSON", found=line[:80].strip()) from error
        if not isinstance(change, dict) or not isinstance(change.get("key"), str):
            raise BadRequest(f"line {number} is no change", found=line[:80].strip(), hint="an object with a key")
        kind = TYPE_OF.get(str(change.get("operation", "put")), "lww_register")
        changes.add(change["key"], {"type": kind, "operation": "put", **change})
    values = _state(call).apply(changes, durability=durability, within_s=within_s)
    rows = [{"key": change["key"], "value": value} for change, value in zip(changes.changes, values, strict=True)]
    call.answer({"entries": rows}, f"{len(rows)} changes applied")


@command.command("top")
@click.argument("prefix", default="", shell_complete=candidates.state_keys)
@click.option("--depth", type=click.IntRange(1, 16), default=1, show_default=True, help="Parts of a prefix.")
@click.option("--rows", type=click.IntRange(1, 1000), default=10, show_default=True)
@host_command
def top(call: CommandContext, prefix: str, depth: int, rows: int) -> None:
    """Show what the state takes, and the traffic with each host.

    Sizes by namespace and by prefix, the largest first; hosts that are furthest behind first.
    """
    found = _state(call).usage(prefix, depth=depth, rows=rows)
    if call.json:
        call.document(found)
        return
    say(f"{found['keys']} keys, {size(found['bytes'])}")
    for title, name in (("namespaces", "namespace"), ("prefixes", "prefix")):
        say()
        cells = [[row[name], str(row["keys"]), size(row["bytes"])] for row in found[title]]
        table([name.upper(), "KEYS>", "SIZE>"], cells, f"no {title}")
    say()
    cells = [
        [
            row["host_id"],
            "?" if row["behind"] is None else str(row["behind"]),
            "-" if row["heard_s"] is None else f"{row['heard_s']:.1f}s",
            size(row["sent_bytes"]),
            size(row["received_bytes"]),
        ]
        for row in found["peers"]
    ]
    table(["HOST", "BEHIND>", "HEARD>", "SENT>", "RECEIVED>"], cells, "no other hosts", spare=["RECEIVED>", "SENT>"])
    say()
    cells = [[row["host_id"], str(row["starts"]), str(row["deltas"])] for row in found["origins"]]
    table(["WRITER", "STARTS>", "WRITES>"], cells, "no writes")


@command.command("dump")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("--prefix", default="", help="Only keys under it.")
@host_command
def dump(call: CommandContext, file: str, prefix: str) -> None:
    """Write all keys to a file, as JSON lines.

    Each key is as it was when it was read: it is no picture of one moment. - is stdout.
    """
    from actorgrid.client.state import SharedState
    from actorgrid.client.state_file import dump as write

    state = SharedState(call.plain_http)
    with click.open_file(file, "w", encoding="utf-8") as out, progress(call.json) as report:
        total = state.usage()["keys"]
        count = write(state.entries(prefix), out, time.time(), lambda done: report("writing keys", done, total))
    if file != "-":
        call.answer({"file": file, "keys": count}, f"{count} keys in {file}")


@command.command("load")
@click.argument("file", type=click.File(encoding="utf-8"))
@host_command
def load(call: CommandContext, file: Any) -> None:
    """Give keys the values of a dump.

    Keys that have them stay as they are, so that loading twice is loading once; keys that are not in it stay. Says
    which had another value. - is stdin.
    """
    from actorgrid.client.state import SharedState
    from actorgrid.client.state_file import load as take
    from actorgrid.client.state_file import read

    with progress(call.json) as report:
        done = take(
            SharedState(call.plain_http), read(file), time.time(), lambda count: report("loading keys", count, 0)
        )
    changed = {"added": done.added, "same": done.same, "overwritten": done.overwritten, "skipped": done.skipped}
    if call.json:
        call.document(changed)
        return
    say(f"{done.added} added, {len(done.overwritten)} overwritten, {done.same} as they were")
    for key in done.overwritten[:SHOWN]:
        say(f"overwritten: {key}")
    for key, why in list(done.skipped.items())[:SHOWN]:
        say(f"not taken: {key}: {why}")
