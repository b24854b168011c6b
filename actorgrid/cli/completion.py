"""``completion``: the script by which a shell completes commands, options, and what the cluster has."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from actorgrid.errors import BadRequest

from .call import CommandContext, json_option, pass_call

SHELLS = ("bash", "zsh", "fish")
PROGRAM = "actorgrid"
INSTALL = {
    "bash": "echo 'eval \"$(actorgrid completion bash)\"' >> ~/.bashrc",
    "zsh": "echo 'eval \"$(actorgrid completion zsh)\"' >> ~/.zshrc",
    "fish": "actorgrid completion fish > ~/.config/fish/completions/actorgrid.fish",
}


@click.command(
    epilog="\b\nTo have it in every new shell:\n" + "\n".join(f"  {command}" for command in INSTALL.values())
)
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@json_option
@pass_call
def command(call: CommandContext, shell: str | None) -> None:
    """Print what makes a shell complete our commands, jobs, hosts, locks and keys.

    Without SHELL it is that of $SHELL.
    """
    shell = shell or _own_shell()
    script = _script(shell)
    call.answer({"shell": shell, "script": script, "install": INSTALL[shell]}, script.rstrip("\n"))


def _own_shell() -> str:
    name = Path(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        raise BadRequest(
            "which shell is not known",
            asked="the shell of $SHELL",
            found=name or "it is not set",
            hint=f"name one: {', '.join(SHELLS)}",
        )
    return name


def _script(shell: str) -> str:
    from .main import cli

    kind = get_completion_class(shell)
    assert kind is not None, f"click completes in {shell}"
    try:
        return kind(cli, {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE").source()
    except RuntimeError as error:  # click looks at the bash that is installed
        raise BadRequest(f"{shell} cannot complete for us: {error}", asked=shell) from None
