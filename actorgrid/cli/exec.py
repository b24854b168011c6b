"""``exec``: another command beside a job's own, where that runs."""

from __future__ import annotations

import sys

import click

from actorgrid.errors import BadRequest

from . import candidates
from .call import CommandContext, host_options, pass_call
from .work import variables

NOT_FOUND_CODE = 127


@click.command("exec", context_settings={"allow_interspersed_args": False})
@click.option("--pty/--no-pty", "pty", default=None, help="Give it a terminal. Default: when we run in one.")
@click.option("--no-stdin", is_flag=True, help="It reads nothing; else what we read.")
@click.option("--rank", type=click.IntRange(0, 255), default=0, help="Of a gang: beside this member.")
@click.option(
    "--env", "env", callback=variables, multiple=True, metavar="K=V", help="A variable beyond the job's; K alone: ours."
)
@host_options
@click.argument("job_id", metavar="JOB", shell_complete=candidates.jobs)
@click.argument("words", metavar="-- CMD [ARGS]...", nargs=-1, required=True)
@pass_call
def command(
    call: CommandContext,
    /,
    job_id: str,
    words: tuple[str, ...],
    pty: bool | None,
    no_stdin: bool,
    rank: int,
    env: dict[str, str],
) -> int:
    """Run another command inside a running job; its output and exit status are yours.

    \b
        actorgrid exec 3f2a -- nvidia-smi
        actorgrid exec 3f2a -- sh

    It runs on the job's host, with its user, variables, directory, GPUs and limits, in its container if it has one,
    and ends with the job. Exits as the command did (128+n: killed by signal n, 127: it could not be run). Without a
    terminal, Ctrl-C interrupts the command, and Ctrl-C again leaves; it gets SIGHUP then.
    """
    from actorgrid.client.job_channel import JobChannel, channel_address
    from actorgrid.client.relay import Relay
    from actorgrid.transports.channel_frames import ExecCommand

    from .channel_session import ChannelSession, SessionLeft
    from .lookup import find_job
    from .own_terminal import check_terminal, has_terminal, own_size, terminal_variables

    words = words[1:] if words[0] == "--" else words
    if not words:
        raise click.UsageError("say which command: actorgrid exec JOB -- CMD")
    if pty and no_stdin:
        raise click.UsageError("--no-stdin is for commands without a terminal: say --no-pty")
    if pty:
        check_terminal("leave --pty out, or say --no-pty")
    with_terminal = (has_terminal() and not no_stdin) if pty is None else pty
    added = {**(terminal_variables() if with_terminal else {}), **env}
    wanted = ExecCommand(words, tuple(added.items()), own_size() if with_terminal else None)
    address = channel_address(call.http, find_job(call.http, job_id)["job_id"], rank)
    relay = Relay(call.http)
    channel = JobChannel(relay, address, wanted)
    input_fd = None if no_stdin else sys.stdin.fileno()
    session = ChannelSession(channel, raw=with_terminal, input_fd=input_fd)
    if no_stdin:
        channel.end_input()
    try:
        ending = session.run()
    except SessionLeft as left:
        return left.code
    except BadRequest as error:
        if session.begun is not None or type(error) is not BadRequest:
            raise
        return _not_run(call, error)
    finally:
        channel.close()
        relay.close()
    return exit_status(ending.exit_code, ending.signal)


def exit_status(code: int | None, number: int | None) -> int:
    """The exit status of ours that says how a command ended, as a shell would."""
    return 128 + number if number else int(code or 0)


def _not_run(call: CommandContext, error: BadRequest) -> int:
    from .main import show_error

    show_error(error, call.json)
    return NOT_FOUND_CODE
