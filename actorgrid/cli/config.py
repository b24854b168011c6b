"""``config``: settings, as they are and where each comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from actorgrid.errors import HostUnreachable

from . import candidates
from .call import CommandContext, config_option, host_command
from .printing import say
from .show import table
from .state import StateCommands


@click.group(cls=StateCommands)
def command() -> None:
    """Show settings, change live ones."""


def settings_now(call: CommandContext, config_dir: Path | None) -> tuple[list[dict[str, Any]], bool]:
    """All settings as GET /api/config gives them, and whether a running agent gave them.

    Without an agent, what the next ``up`` would read. Raises ConfigError then, WrongToken before.
    """
    if config_dir is None:
        try:
            settings: list[dict[str, Any]] = call.http.get("/api/config")["settings"]
            return settings, True
        except HostUnreachable:
            if call.url is not None:
                raise
    return settings_of_files(call, config_dir), False


def settings_of_files(call: CommandContext, config_dir: Path | None) -> list[dict[str, Any]]:
    """The settings that the next ``up`` on this data directory would read. Raises ConfigError."""
    from actorgrid.configs.load import load_settings
    from actorgrid.configs.schema import Settings

    loaded = load_settings(config_dir, call.resolved_data_dir)
    defaults = Settings().model_dump(mode="json")
    values = loaded.settings.model_dump(mode="json")
    return [
        {
            "key": key,
            "value": _at(values, key),
            "default": _at(defaults, key),
            "origin": str(origin),
            "live": loaded.settings.is_live(key),
            "description": loaded.settings.describe(key),
        }
        for key, origin in loaded.origins.items()
    ]


def _at(tree: Any, key: str) -> Any:
    for part in key.split("."):
        tree = tree[part]
    return tree


def text(value: Any) -> str:
    """A value as a person would write it."""
    import json

    return value if isinstance(value, str) and value else json.dumps(value)


def show(settings: list[dict[str, Any]], empty: str) -> None:
    """The table of settings."""
    rows = [
        [entry["key"], text(entry["value"]), entry["origin"], "live" if entry["live"] else ""] for entry in settings
    ]
    table(["SETTING", "VALUE", "ORIGIN", "LIVE"], rows, empty)


@command.command("list")
@click.option("--changed", is_flag=True, help="Only those that are not at their default.")
@config_option
@host_command
def list_(call: CommandContext, changed: bool, config_dir: Path | None) -> None:
    """List settings with their values and origins."""
    settings, running = settings_now(call, config_dir)
    shown = [entry for entry in settings if not changed or entry["origin"] != "default"]
    if call.json:
        call.document({"settings": shown, "running": running})
        return
    if not running:
        say("no agent runs; this is what the next one would read", err=True)
    show(shown, "every setting is at its default")


@command.command("get")
@click.argument("key", shell_complete=candidates.settings)
@config_option
@host_command
def get(call: CommandContext, key: str, config_dir: Path | None) -> None:
    """Print one setting."""
    settings, _ = settings_now(call, config_dir)
    found = next((entry for entry in settings if entry["key"] == key), None)
    if found is None:
        from actorgrid.configs.schema import unknown_setting

        raise unknown_setting(key, [entry["key"] for entry in settings])
    call.answer(found, text(found["value"]))


@command.command("set")
@click.argument("key", shell_complete=candidates.settings)
@click.argument("value")
@host_command
def set_(call: CommandContext, key: str, value: str) -> None:
    """Change a live setting, at once and for good.

    The change is kept in the ledger and wins over files, environment and flags at later starts.
    """
    from actorgrid.client.http import segment

    answer = call.http.put(f"/api/config/{segment(key)}", {"value": value})
    call.answer(answer, f"{key} = {text(answer['value'])} (was {text(answer['previous'])})")
