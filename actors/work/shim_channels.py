"""What the channels of a shim's attempt lead to: its terminal, further commands, its ports."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass

from actorgrid.errors import JobNotRunning, NotATerminal
from actorgrid.transports.channel_frames import (
    CLOSED,
    AskPorts,
    AttachToTerminal,
    ChannelEnding,
    ChannelPurpose,
    ConnectToPort,
    ExecCommand,
)

from .containers import command_inside
from .exec_child import ExecChild
from .exec_session import ExecSessions
from .groups import FreezerGroup, KillGroup
from .job_channels import Channel, ChannelEnd, JobChannels, Served, channel_secret
from .job_ports import PORTS_SHOWN_MAX, PortConnection, find_port, ports_of
from .job_terminal import AttachedClient, JobTerminal
from .process_tree import processes_of_work
from .work_records import WorkSpec, uid_of


@dataclass(frozen=True, slots=True)
class OpenWork:
    """The work that people may come to now, as its shim knows it."""

    attempt_id: str
    spec: WorkSpec
    env: dict[str, str]
    """Its variables, as it was started with them."""
    group: KillGroup | FreezerGroup | None
    init_pid: int
    """Of its pid namespace; 0: it has none."""
    is_prepared: bool
    """Whether the work itself has begun: before, its environment is made."""
    pid: int = 0
    """Of the command or worker."""


class ShimChannels:
    """The channels of one shim, which it turns in its loop. *work*: what they are to; ``None``: to nothing just now."""

    def __init__(self, listener: socket.socket, poll: select.poll, work: Callable[[], OpenWork | None]) -> None:
        self._work = work
        self._execs = ExecSessions()
        self.terminal: JobTerminal | None = None
        self._channels = JobChannels(listener, poll, self._served, self._lead)

    def listen(self) -> None:
        """Take clients from here on."""
        self._channels.listen()

    def ready(self, fd: int) -> bool:
        """Deal with a ready descriptor; ``False`` when it is none of these."""
        return self._channels.ready(fd)

    def turn(self, now: float) -> None:
        """Do what the clock says is due."""
        for channel in self._execs.look_at_clock(now):
            self._channels.go_on(channel)
        self._channels.look_at_clock(now)

    def wait_s(self) -> float:
        """How long the loop may sleep for these."""
        return min(self._channels.wait_s(), self._execs.wait_s())

    def child_ended(self, pid: int, status: int, now: float) -> None:
        """Take note of a child that was reaped."""
        channel = self._execs.ended(pid, status, now)
        if channel is not None:
            self._channels.go_on(channel)

    def terminal_wrote(self) -> None:
        """Pass on what the job's terminal has."""
        if self.terminal is not None:
            for channel in list(self.terminal.attached):
                self._channels.go_on(channel)

    def work_has_ended(self) -> None:
        """Take note that the work has ended, or is told to end."""
        self._execs.work_has_ended()

    def close_all(self) -> None:
        """End all channels, as the work has ended."""
        self.terminal_wrote()
        self._channels.close_all()

    def _served(self) -> Served | None:
        work = self._work()
        return None if work is None else Served(work.attempt_id, channel_secret(work.spec["token"]))

    def _lead(self, purpose: ChannelPurpose, channel: Channel) -> ChannelEnd | None:
        work = self._work()
        if work is None or not (work.is_prepared or isinstance(purpose, AttachToTerminal)):
            raise JobNotRunning(
                "the job has ended" if work is None else "the job's environment is still being made",
                hint="what it has written: actorgrid logs JOB",
            )
        match purpose:
            case AttachToTerminal():
                if self.terminal is None:
                    raise NotATerminal(
                        "the job has no terminal",
                        asked=work.attempt_id,
                        found="it was started without --pty",
                        hint="actorgrid logs -f JOB shows its output, actorgrid exec JOB -- sh is a shell beside it",
                    )
                return AttachedClient(self.terminal, purpose, channel)
            case ExecCommand():
                return self._execs.start(_child(work, purpose), purpose, channel)
            case ConnectToPort(port):
                return PortConnection(find_port(port, _pids(work)), channel)
            case AskPorts():
                channel.say(["begun", {"ports": ports_of(_pids(work))[:PORTS_SHOWN_MAX]}])
                channel.finish(ChannelEnding(why=CLOSED).frame())
        return None


def _pids(work: OpenWork) -> list[int]:
    """The processes of the work."""
    members = () if work.group is None else work.group.members()
    return processes_of_work(os.getpid(), work.attempt_id, work.spec, members)


def _child(work: OpenWork, wish: ExecCommand) -> ExecChild:
    """The command that a client asks for, where and as it is to run. Raises ContainerFailed."""
    spec, command, env, inside_pid = work.spec, list(wish.command), {**work.env, **dict(wish.env)}, 0
    if spec.get("container"):
        outside = work.init_pid or os.getpid()
        has_terminal = wish.size is not None
        inside = command_inside(spec, command, dict(wish.env), outside, _pids(work), has_terminal=has_terminal)
        command, inside_pid = inside.command, inside.inside_pid
        env = env if inside.env is None else inside.env
    # A container that is kept apart is so by its runtime, which root runs.
    apart = None if spec.get("container") and uid_of(spec) else spec.get("apart")
    return ExecChild(command, env, spec["cwd"], work.group, work.init_pid, inside_pid, apart, work.pid)
