"""``state``: the shared state, from a shell."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

from .call import CommandContext, host_command
from .printing import say
from .show import table
from .suggest import suggestion


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
@click.argument("key")
@host_command
def get(call: CommandContext, key: str) -> None:
    """Print a key's value."""
    entry = _state(call).entry(key)
    call.answer(entry, _text(entry["value"]))


@command.command("put")
@click.argument("key")
@click.argument("value")
@click.option("--type", "kind", type=click.Choice(["lww_register", "mv_register"]), default="lww_register")
@_durability
@host_command
def put(call: CommandContext, key: str, value: str, kind: str, durability: Any, within_s: float) -> None:
    """Set a register."""
    _answer(call, key, _state(call).put(key, _value(value), type=kind, durability=durability, within_s=within_s))


@command.command("incr", context_settings={"ignore_unknown_options": True})
@click.argument("key")
@click.argument("by", type=int, default=1)
@_durability
@host_command
def incr(call: CommandContext, key: str, by: int, durability: Any, within_s: float) -> None:
    """Add to a counter; a negative number takes away."""
    state = _state(call)
    change = state.increment if by >= 0 else state.decrement
    _answer(call, key, change(key, abs(by), durability=durability, within_s=within_s))


@command.command("add")
@click.argument("key")
@click.argument("value")
@_durability
@host_command
def add(call: CommandContext, key: str, value: str, durability: Any, within_s: float) -> None:
    """Add to a set."""
    _answer(call, key, _state(call).add_to_set(key, _value(value), durability=durability, within_s=within_s))


@command.command("remove")
@click.argument("key")
@click.argument("value")
@_durability
@host_command
def remove(call: CommandContext, key: str, value: str, durability: Any, within_s: float) -> None:
    """Remove from a set."""
    _answer(call, key, _state(call).remove_from_set(key, _value(value), durability=durability, within_s=within_s))


@command.command("list")
@click.argument("prefix", default="")
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
@click.argument("prefix", default="")
@click.option("--initial", is_flag=True, help="First what is there.")
@host_command
def watch(call: CommandContext, prefix: str, initial: bool) -> None:
    """Print changes under a prefix, until interrupted.

    With --json each line is a document of its own.
    """
    for entry in _state(call).watch(prefix, initial=initial):
        call.answer(entry, f"{entry['key']} {_text(entry['value'])}")
