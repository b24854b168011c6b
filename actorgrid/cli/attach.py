"""``attach``: the terminal of a job that was started with one; and what ``run --pty`` does once it is sent."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from actorgrid.errors import HostUnreachable, JobNotRunning, NotATerminal, NotFound
from actorgrid.job_outcome import FINAL_STATES

from . import candidates
from .call import CommandContext, host_command
from .detach_keys import DEFAULT_KEYS, DetachKeys
from .printing import say

if TYPE_CHECKING:
    from actorgrid.client.job_channel import ChannelAddress
    from actorgrid.client.relay import Relay


LOOK_S = 0.2
SETTLE_S = 30.0
"""How long the ledger may take to say how an attempt ended whose terminal is gone."""


def _keys(_ctx: click.Context, _parameter: click.Parameter, value: str) -> DetachKeys:
    return DetachKeys(value)


detach_keys_option = click.option(
    "--detach-keys",
    "keys",
    callback=_keys,
    default=DEFAULT_KEYS,
    show_default=True,
    metavar="KEYS",
    help="Leave the job's terminal with these; the job goes on.",
)


@click.command()
@click.argument("job_id", metavar="JOB", shell_complete=candidates.jobs)
@click.option("--rank", type=click.IntRange(0, 255), default=0, help="Of a gang: of this member.")
@click.option("--read-only", is_flag=True, help="Only look: nothing is typed, and its size stays as it is.")
@click.option("--history", type=click.IntRange(min=0), metavar="BYTES", help="Of what it wrote before, so much.")
@detach_keys_option
@host_command
def command(
    call: CommandContext, job_id: str, rank: int, read_only: bool, history: int | None, keys: DetachKeys
) -> int:
    """Have the terminal of a job that was started with --pty here.

    You see what it has written, and writes, and it gets your keys. Several may be attached at once; all see the same,
    what any of them types is typed, and the terminal has the size that was said last. Ctrl-] and then d leaves, and
    the job goes on. When the job ends, this exits as it did.
    """
    from .lookup import find_job
    from .run import ending, exit_code

    if call.json:
        raise click.UsageError("a terminal is no document: --json is not for attach (actorgrid logs --json JOB)")
    found = find_job(call.http, job_id)
    if found["state"] in FINAL_STATES:
        raise JobNotRunning(
            f"the job has ended: it is {found['state']}",
            asked=found["job_id"],
            hint=f"what it wrote: actorgrid logs {found['job_id']}",
        )
    attended = TerminalAttendance(call, found["job_id"], None if read_only else keys, rank, history)
    job = attended.run()
    if job is None:
        return attended.left_with
    if job["state"] != "succeeded":
        say(f"actorgrid: {ending(job)}", err=True)
    return exit_code(job)


class TerminalAttendance:
    """A person at a job's terminal, from before its start to its end, through all its attempts.

    *keys*: those that leave; ``None``: the person only looks on. *on_interrupt* is called for Ctrl-C while the job
    waits (later, it is a key); without it, that leaves.
    """

    def __init__(
        self,
        call: CommandContext,
        job_id: str,
        keys: DetachKeys | None,
        rank: int = 0,
        history: int | None = None,
        on_interrupt: Callable[[], None] | None = None,
    ) -> None:
        from .own_terminal import check_terminal

        if keys is not None:
            check_terminal("actorgrid attach --read-only looks on without one, actorgrid logs -f as well")
        self._call = call
        self._job_id = job_id
        self._keys = keys
        self._rank = rank
        self._history = history
        self._on_interrupt = on_interrupt
        self._said = ""
        self.left_with = 0
        """Our exit status, where the person has left before the end."""

    def run(self) -> dict[str, Any] | None:
        """Attend until the job ends; gives the ended job, or ``None`` when the person has left.

        Raises NotATerminal when the job has none, and what keeps us from knowing how it ended.
        """
        from actorgrid.client.relay import Relay

        relay = Relay(self._call.http)
        over = 0  # the last attempt whose terminal is gone
        try:
            while True:
                job = self._await_start(over)
                if job["state"] in FINAL_STATES:
                    number = job["attempts"][-1]["number"] if job["attempts"] else 0
                    if number > over:
                        self._show_rest(number, 0)  # it was too short for us to come to its terminal
                    return job
                try:
                    address = self._address()
                except JobNotRunning:
                    time.sleep(LOOK_S)  # it has just ended, or has not quite begun
                    continue
                if not self._attend(relay, address):
                    return None
                over = address.attempt
        finally:
            relay.close()

    def _address(self) -> ChannelAddress:
        from actorgrid.client.job_channel import channel_address

        address = channel_address(self._call.http, self._job_id, self._rank)
        if not address.has_terminal:
            raise NotATerminal(
                "the job has no terminal",
                asked=self._job_id,
                found="it was started without --pty",
                hint=f"actorgrid logs -f {self._job_id[:8]} shows its output, actorgrid exec {self._job_id[:8]} -- sh"
                " is a shell beside it",
            )
        return address

    def _await_start(self, over: int) -> dict[str, Any]:
        """The job once it runs an attempt after number *over*, or has ended."""
        from actorgrid.client.http import segment

        settled_by = time.monotonic() + SETTLE_S
        while True:
            try:
                job: dict[str, Any] = self._call.http.get(f"/api/jobs/{segment(self._job_id)}")
                number = job["attempts"][-1]["number"] if job["attempts"] else 0
                if job["state"] in FINAL_STATES or (job["state"] == "running" and number > over):
                    return job
                if job["state"] != "running":
                    self._say(f"{self._job_id[:8]} is {job['state']}; actorgrid why {self._job_id[:8]} tells more")
                elif time.monotonic() > settled_by:
                    raise JobNotRunning("the job's terminal is gone, and its end is not known yet", asked=self._job_id)
                time.sleep(LOOK_S)
            except KeyboardInterrupt:
                if self._on_interrupt is None:
                    raise
                on_interrupt, self._on_interrupt = self._on_interrupt, None
                on_interrupt()

    def _attend(self, relay: Relay, address: ChannelAddress) -> bool:
        """Be at the terminal of one attempt until that ends; ``False`` when the person left before."""
        from actorgrid.client.job_channel import JobChannel
        from actorgrid.transports.channel_frames import AttachToTerminal

        from .channel_session import ChannelSession, SessionLeft
        from .own_terminal import own_size

        looks_on = self._keys is None
        channel = JobChannel(relay, address, AttachToTerminal(None if looks_on else own_size(), self._history))
        input_fd = None if looks_on else sys.stdin.fileno()
        session = ChannelSession(channel, raw=not looks_on, input_fd=input_fd, keys=self._keys)
        try:
            session.run()
        except JobNotRunning:
            self._show_rest(address.attempt, session.at)
        except (SessionLeft, KeyboardInterrupt) as left:
            self.left_with = left.code if isinstance(left, SessionLeft) else 0
            say(f"\nactorgrid: left; the job goes on: actorgrid attach {self._job_id[:8]}", err=True)
            return False
        finally:
            channel.close()
        return True

    def _show_rest(self, attempt: int, offset: int) -> None:
        """Show what the terminal said from *offset* on when it was gone: it is in the output that is kept."""
        from actorgrid.client.http import segment

        query = {"stream": "stdout", "attempt": attempt, "offset": offset, "rank": self._rank or None}
        try:
            with self._call.http.stream(f"/api/jobs/{segment(self._job_id)}/logs", **query) as response:
                while piece := response.read1(64 * 1024):
                    sys.stdout.buffer.write(piece)
        except (HostUnreachable, NotFound) as error:  # it was lost with its host, or is not kept any more
            say(f"actorgrid: the last of its output is not to be had: {error.message}", err=True)
        sys.stdout.flush()

    def _say(self, text: str) -> None:
        if text != self._said and sys.stderr.isatty():
            self._said = text
            say(f"actorgrid: {text}", err=True)
