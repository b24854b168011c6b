"""The group of Slurm's commands; each loads when it is called."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import click

from ..printing import say

COMMANDS = {
    "sbatch": ("batch", "sbatch", "Queue a batch script; its #SBATCH lines are read."),
    "srun": ("batch", "srun", "Run a command as a job; inside of a job, here."),
    "squeue": ("queue", "squeue", "List jobs that wait and run."),
    "scancel": ("queue", "scancel", "Cancel jobs."),
    "sinfo": ("hosts", "sinfo", "List hosts, by what they are doing."),
    "sacct": ("accounting", "sacct", "List jobs that have ended too, with what they took."),
}


class SlurmCommands(click.Group):
    """Loads a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All of them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, loaded now."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        found: click.Command = getattr(import_module(f".{module}", __package__), attribute)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """From the table alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])


@click.group(cls=SlurmCommands, invoke_without_command=True)
@click.option(
    "--print-shims",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write small scripts of these names there; put DIR into PATH.",
)
@click.pass_context
def command(ctx: click.Context, folder: Path | None) -> None:
    """Slurm's commands, said of this cluster: sbatch, srun, squeue, scancel, sinfo, sacct.

    What an option or a #SBATCH line means here is done; what has no meaning here is said on stderr by its name, and the
    rest goes on. docs/migrating/slurm.md has the table.
    """
    if folder is not None:
        from .shims import write_shims

        for path in write_shims(folder):
            say(str(path))
        return
    if ctx.invoked_subcommand is None:
        say(ctx.get_help())
