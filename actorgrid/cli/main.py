"""The root of the command line. Imports nothing but click: ``--help`` must cost no more than click itself.

Commands load when they are called. What ``--help`` shows of them stands in ``COMMANDS``; a test holds it to the
commands' own help. Every way to fail ends here: people read it on stderr, ``--json`` puts it on stdout.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from actorgrid.errors import ActorGridError

from .call import CommandContext
from .printing import say, say_json, visible

COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "A host": {
        "up": ("up:command", "Run this machine's agent, in the foreground."),
        "status": ("hosts:status", "One screen: health, GPUs, jobs."),
        "hosts": ("hosts:hosts", "List the hosts."),
        "token": ("token:command", "Make, list and revoke join tokens."),
        "leave": ("leave:command", "Take this host out of the cluster, or another (--host)."),
        "secret": ("secret:command", "Set, list and remove secrets."),
        "key": ("key:command", "Make, list, rotate and revoke API keys, for clients on other machines."),
        "login": (
            "login:login",
            "Sign in at the cluster's identity provider; commands with the same --url find the key.",
        ),
        "logout": ("login:logout", "Take back the key that login was given: it opens nothing any more."),
        "audit": ("audit:command", "Show, export, prove and verify who asked what of a host."),
        "ca": ("ca:command", "Show the cluster's authority, rotate it; renew certificates."),
        "rebalance": ("rebalance:command", "Have sessions' workers leave hosts with too much to do."),
        "drain": ("drain:command", "Give a host nothing new, so that it can be serviced."),
        "maintenance": ("maintenance:command", "Have nothing done about a host while somebody works on it."),
        "restart": ("upgrade:restart", "Start a host's agent anew; its work goes on."),
        "upgrade": ("upgrade:upgrade", "Start all agents anew, one after the other, on what is installed now."),
        "gpus": ("hosts:gpus", "List the GPUs and what holds them."),
        "doctor": ("doctor:command", "Check this machine; each problem with a fix."),
        "config": ("config:command", "Show settings, change live ones."),
        "inspect": ("inspect:command", "Draw the supervision tree; look into one server."),
        "faults": ("faults:command", "List what failed on hosts, and what was done about it."),
        "alerts": ("alerts:command", "Show what is wrong with hosts and cluster, silence alerts."),
        "bench": ("bench:command", "Measure what the paths of bytes do here."),
        "tune": ("tune:command", "Show what is slow, and which setting to change."),
        "events": ("events:command", "Print what happens, as it happens."),
    },
    "Work": {
        "run": ("run:command", "Run a command as a job; its output and exit status are yours."),
        "submit": (
            "submit:command",
            "Queue a Python file as a job, or the graph of steps in a file, or an array of jobs.",
        ),
        "dag": ("dag:command", "Plan graphs of steps (DAGs), look at them, draw them."),
        "work": (
            "typed_work:command",
            "Submit work by the name of its type, with arguments that are checked by its schema.",
        ),
        "deploy": ("deploy:command", "Give living light processes the classes of MODULE's new source."),
        "schedule": (
            "schedule:command",
            "Have work run at times: written once, run by whichever host leads then.",
        ),
        "serve": ("serve:serve", "Keep replicas of a server running, wherever there is room."),
        "services": ("services:services", "List services; show one; remove some."),
        "scale": ("services:scale", "Say how many replicas a service has."),
        "rollout": ("serve:rollout", "Exchange a service's replicas for others."),
        "rollback": ("services:rollback", "Give up a rollout, or go back to what served before."),
        "ps": ("jobs:ps", "List jobs."),
        "logs": ("logs:command", "Print a job's output."),
        "attach": ("attach:command", "Have the terminal of a job that was started with --pty here."),
        "exec": ("exec:command", "Run another command inside a running job; its output and exit status are yours."),
        "port": ("port:command", "Lead a port of this machine to a port on which a running job listens."),
        "get": ("get:command", "Fetch files that a job kept (run --out, submit --out)."),
        "cancel": ("jobs:cancel", "Cancel jobs, waiting or running."),
        "wait": ("wait:command", "Wait until jobs have ended."),
        "retry": (
            "retry:command",
            "Begin jobs again that have failed, were lost or cancelled; graphs from where they stopped.",
        ),
        "notifications": (
            "notifications:command",
            "Show notifications that wait or were given up; try targets.",
        ),
        "edit": ("edit:command", "Change a job that waits: priority, time limit, deadline, labels, what it asks for."),
        "objects": ("objects:command", "List what sessions keep in the object stores."),
        "environments": ("environments:command", "List the Python environments that a host has built."),
        "why": ("why:command", "Why a job waits or failed, or a host or a service is as it is, and what to do."),
        "state": ("state:command", "Read and change the shared state, which all hosts of a cluster have."),
        "lock": ("lock:command", "Run a command under a lock; see who holds what."),
        "usage": ("usage:command", "What work has used: GPU-seconds, device memory, energy, CPU."),
        "quota": ("quota:command", "Show quotas of users, change them."),
        "tenant": ("tenant:command", "Show tenants that share the cluster; create, change, remove them."),
    },
    "More": {
        "monitoring": ("monitoring:command", "Write files for Prometheus and Grafana: targets, alerts, dashboards."),
        "timeline": ("timeline:command", "Show timelines of kernels, write them for Perfetto."),
        "ledger": ("ledger:command", "Check, show, back up and restore the ledger's files."),
        "slurm": (
            "slurm:command",
            "Slurm's commands, said of this cluster: sbatch, srun, squeue, scancel, sinfo, sacct.",
        ),
        "demo": ("demo:command", "Render a picture on shared GPUs: a tour in a minute."),
        "replay": ("replay:command", "Replay a production trace; compare policies."),
        "chaos": ("chaos:command", "Run clusters of the real cores on virtual time, with seeded faults."),
        "completion": (
            "completion:command",
            "Print what makes a shell complete our commands, jobs, hosts, locks and keys.",
        ),
        "version": ("version:command", "Show versions."),
    },
}
_TARGETS = {name: target for section in COMMANDS.values() for name, target in section.items()}

EPILOG = """
\b
Exit codes: 0 done; 1 failed; 2 wrong use or request refused; 3 wrong token; 4 no such thing;
5 the agent cannot be reached or started; 6 storage; 7 overloaded or held, try later; 8 lock lost; 130 interrupted.
`run` exits as its command does (128+n: killed by signal n; 124: time limit; 130: cancelled).

\b
A host is found by --url or --data-dir, else $ACTORGRID_URL (with $ACTORGRID_TOKEN), else $ACTORGRID_DATA_DIR,
else ~/.local/share/actorgrid. Every command takes --json. NO_COLOR is respected.
"""

USAGE_CODE = 2
INTERRUPTED_CODE = 130


class Commands(click.Group):
    """Loads a command when it is called, and turns every failure into a message and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order they are shown."""
        return list(_TARGETS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, loaded now."""
        if cmd_name not in _TARGETS:
            return None
        module, _, attribute = _TARGETS[cmd_name][0].partition(":")
        found: click.Command = getattr(import_module(f".{module}", __package__), attribute)
        return found

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """From the table alone, as ``--help``: somebody waits at a prompt."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        commands = {name: text for section in COMMANDS.values() for name, (_, text) in section.items()}
        return [CompletionItem(name, help=text) for name, text in commands.items() if name.startswith(incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with a suggestion for a misspelt name."""
        if args and args[0] not in _TARGETS and not args[0].startswith("-"):
            from .other_tools import of_command
            from .suggest import suggestion

            said = of_command(args[0]) or suggestion(args[0], _TARGETS)
            raise click.UsageError(f"there is no command {args[0]!r}.{said}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """From the table alone: no command is loaded to be listed."""
        for title, commands in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, (_, text) in commands.items()])

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        """Run and exit the process, always."""
        given = list(sys.argv[1:] if args is None else args)
        extra.pop("standalone_mode", None)
        call = extra.pop("obj", None) or CommandContext()
        try:
            result = super().main(given, prog_name or "actorgrid", standalone_mode=False, obj=call, **extra)
            code = result if isinstance(result, int) else 0
            sys.stdout.flush()
        except click.ClickException as error:
            code = _show_usage_error(error, call.json or _asks_json(given))
        except ActorGridError as error:
            code = show_error(error, call.json)
        except (click.Abort, KeyboardInterrupt):
            _tell("interrupted")
            code = INTERRUPTED_CODE
        except BrokenPipeError:
            code = _reader_left()
        finally:
            call.close()
        sys.exit(code)


def _asks_json(arguments: list[str]) -> bool:
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in own


def _tell(text: str) -> None:
    """Tell a person, on stderr; outside any click context, so NO_COLOR is looked at here."""
    say(text, err=True, color=False if os.environ.get("NO_COLOR") else None)


def show_error(error: ActorGridError, as_json: bool) -> int:
    """Show an error as every command does; gives the exit code that it stands for."""
    if as_json:
        say_json({"error": error.to_dict()})
        return error.exit_code
    _tell(click.style("error: ", fg="red", bold=True) + visible(error.message or error.code))
    for label, text in (("asked", error.asked), ("found", error.found), ("try", error.hint)):
        if text:
            _tell(f"  {click.style(label, bold=True)}: {visible(text)}")
    return error.exit_code


def _show_usage_error(error: click.ClickException, as_json: bool) -> int:
    message, hint = error.format_message(), ""
    ctx = getattr(error, "ctx", None)
    if isinstance(error, click.NoSuchOption) and ctx is not None and ctx.parent is None:
        hint = f"options follow the command: actorgrid COMMAND {error.option_name}"
    elif ctx is not None:
        hint = _hint_for(error, ctx)
    if as_json:
        fields = {"code": "BadRequest", "message": message, "asked": "", "found": "", "hint": hint, "details": {}}
        say_json({"error": fields})
    else:
        _tell(click.style("error: ", fg="red", bold=True) + visible(message))
        if hint:
            _tell(f"  {click.style('try', bold=True)}: {visible(hint)}")
    return USAGE_CODE


def _hint_for(error: click.ClickException, ctx: click.Context) -> str:
    """The hint of what to type instead; where nothing better is known, where the options are listed."""
    if isinstance(error, click.NoSuchOption):
        from .other_tools import of_option

        known = {name for parameter in ctx.command.params for name in parameter.opts}
        meant = of_option(error.option_name, known)
        if meant:
            return f"{meant} ({ctx.command_path} --help)"
    return f"{ctx.command_path} --help"


def _reader_left() -> int:
    """Leave quietly, and without the interpreter's complaint, as the reader of our output has gone (``| head``)."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + 13


@click.group(
    name="actorgrid",
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=EPILOG,
    invoke_without_command=True,
)
@click.option("--version", "show_version", is_flag=True, help="Show the version and exit.")
@click.pass_context
def cli(ctx: click.Context, show_version: bool) -> None:
    """Actors that run a GPU cluster: one agent per host."""
    if os.environ.get("NO_COLOR"):
        ctx.color = False
    if show_version:
        from actorgrid import __version__

        say(f"actorgrid {__version__}")
        ctx.exit(0)
    if ctx.invoked_subcommand is None:
        say(ctx.get_help())
        ctx.exit(0)


def main() -> NoReturn:
    """Entry of the ``actorgrid`` script."""
    cli.main()
