"""``quota``: who may hold how much at once, and holds; and changing that."""

from __future__ import annotations

from typing import Any

import click

from .call import CommandContext, host_command, host_options
from .show import size, table
from .state import StateCommands
from .work import size_text


class QuotaCommands(StateCommands):
    """Alone, it lists."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does: no arguments are not the wish for help here."""
        return click.Group.parse_args(self, ctx, args)


@click.group(cls=QuotaCommands, invoke_without_command=True)
@host_options
@click.pass_context
def command(ctx: click.Context) -> None:
    """Show quotas of users, change them.

    Alone: each user with what is held now of what is allowed at once, and jobs waiting; a minus is no limit. The
    quota of the user '*' holds for everyone without a quota of one's own.
    """
    if ctx.invoked_subcommand is None:
        call = ctx.ensure_object(CommandContext)
        quotas = call.http.get("/api/quotas")["quotas"]
        if call.json:
            call.document({"quotas": quotas})
        else:
            _show(quotas)


def _show(quotas: list[dict[str, Any]]) -> None:
    rows = []
    for quota in quotas:
        limits, used = quota["limits"] or {}, quota["used"]
        source = "none" if not limits else "of *" if quota["default"] else "own"
        rows.append([quota["user"], source, *(_cell(name, used, limits) for name in _COLUMNS)])
    table(["USER", "QUOTA", *_COLUMNS.values()], rows, "no quotas, and nobody holds anything")


_COLUMNS = {
    "gpus": "GPUS>",
    "gpu_memory_bytes": "GPU MEMORY>",
    "cpus": "CPUS>",
    "memory_bytes": "MEMORY>",
    "jobs_waiting": "WAITING>",
}


def _cell(name: str, used: dict[str, Any], limits: dict[str, Any]) -> str:
    limit = limits.get(name)
    return f"{_amount(name, used[name])} / {'-' if limit is None else _amount(name, limit)}"


def _amount(name: str, amount: float) -> str:
    if name.endswith("_bytes"):
        return size(int(amount)) if amount else "0"
    return f"{amount:g}"


@command.command("set")
@click.argument("user")
@click.option("--gpus", type=click.FloatRange(0, 1_000_000), metavar="N", help="GPUs at once; shares add up.")
@click.option("--gpu-memory", callback=size_text, metavar="SIZE", help="Memory asked for on GPUs, all together.")
@click.option("--cpus", type=click.FloatRange(0, 1_000_000), metavar="N", help="CPUs at once.")
@click.option("--memory", callback=size_text, metavar="SIZE", help="Host memory asked for, all together.")
@click.option("--waiting", type=click.IntRange(0, 2**31), metavar="N", help="Jobs that may wait.")
@click.option("--unlimited", is_flag=True, help="Hold this user to nothing, not even to the quota of '*'.")
@host_command
def set_(call: CommandContext, /, user: str, unlimited: bool, waiting: int | None, **amounts: Any) -> None:
    """Hold USER to a quota; '*' is everyone without one.

    The whole quota is replaced: what is not given is not limited. What runs goes on; what waits does so until there is
    room.
    """
    from actorgrid.client.http import segment

    limits = {**amounts, "jobs_waiting": waiting}
    if unlimited != all(limit is None for limit in limits.values()):
        raise click.UsageError("give at least one limit, or --unlimited alone")
    _answer(call, call.http.put(f"/api/quotas/{segment(user)}", limits))


@command.command("remove")
@click.argument("user")
@host_command
def remove(call: CommandContext, user: str) -> None:
    """Take USER's own quota away; that of '*' holds then, if there is one."""
    from actorgrid.client.http import segment

    _answer(call, call.http.delete(f"/api/quotas/{segment(user)}", patient=False))


def _answer(call: CommandContext, answer: dict[str, Any]) -> None:
    call.answer(answer, f"{answer['user']}: {_text(answer['limits'])} (was {_text(answer['previous'])})")


def _text(limits: dict[str, Any] | None) -> str:
    """A quota in a line."""
    if limits is None:
        return "no quota of one's own"
    words = {
        "gpus": "GPUs",
        "gpu_memory_bytes": "GPU memory",
        "cpus": "CPUs",
        "memory_bytes": "memory",
        "jobs_waiting": "waiting jobs",
    }
    parts = [f"{word} {_amount(name, limits[name])}" for name, word in words.items() if limits[name] is not None]
    return ", ".join(parts) or "not limited"
