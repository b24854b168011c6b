"""``lock``: a command that runs while it holds a lock; who holds what; giving one back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from actorgrid.client.http import segment
from actorgrid.client.lock_hold import LockHold
from actorgrid.errors import ActorGridError, LockLost, NotFound
from actorgrid.fencing import FencingToken

from . import candidates
from .call import CommandContext, host_command, host_options, pass_call
from .printing import say
from .show import ago, table
from .state import StateCommands
from .times import seconds

LOOK_S = 0.2
"""How often it is looked whether the command, or the lease, has ended."""
GRACE_MAX_S = 5.0
FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
# The command dies with us, also when we are killed: nobody would renew for it. The kernel keeps that over an exec.
_BOOTSTRAP = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() != int(sys.argv[1]): sys.exit(1)
try: os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    name = sys.argv[2] if sys.argv[2].isprintable() else ascii(sys.argv[2])
    print(f"actorgrid: {name}: {error.strerror}", file=sys.stderr)
    sys.exit(127 if isinstance(error, FileNotFoundError) else 126)
"""


@click.group(cls=StateCommands)
def command() -> None:
    """Run a command under a lock; see who holds what.

    Locks and semaphores of the whole cluster, first come, first served.
    """


@command.command("run")
@click.argument("name")
@click.option(
    "--slots", type=click.IntRange(1, 1000), default=1, show_default=True, help="How many may hold it at once."
)
@click.option("--ttl", default="10s", show_default=True, callback=seconds, help="Until it is lost without a renewal.")
@click.option("--wait", metavar="TIME", callback=seconds, help="How long to wait for it; 0: not at all [for ever].")
@click.option(
    "--grace", metavar="TIME", callback=seconds, help="From SIGTERM to SIGKILL [a quarter of --ttl, at most 5s]."
)
@host_options
@click.argument("words", metavar="-- CMD [ARGS]...", nargs=-1, required=True)
@pass_call
def run(
    call: CommandContext,
    /,
    name: str,
    words: tuple[str, ...],
    slots: int,
    ttl: float,
    wait: float | None,
    grace: float | None,
) -> int:
    """Run CMD here while holding the lock NAME.

    \b
        actorgrid lock run nightly -- ./backup.sh
        actorgrid lock run licences --slots 4 --wait 10m -- simulate

    CMD finds the fencing token in ACTORGRID_LOCK_TOKEN, a number, and the lock's name in ACTORGRID_LOCK_NAME. If the
    lease cannot be renewed, CMD and what it started get SIGTERM before it ends, and SIGKILL when it does. Exits as CMD
    did (128+n: signal n; 126, 127: it cannot be run), with 7 when the lock was not to be had in time, with 8 when it
    was lost. With --json, CMD's output goes to stderr.
    """
    from actorgrid.client.user import user_name

    grace_s = min(GRACE_MAX_S, ttl / 4) if grace is None else min(grace, ttl / 2)
    hold = LockHold(call.http, name, ttl_s=ttl, slots=slots, user=user_name(), on_lost=None, alive=lambda: True)
    token = hold.acquire(wait)
    environment = {**os.environ, "ACTORGRID_LOCK_NAME": name, "ACTORGRID_LOCK_TOKEN": str(int(token))}
    bootstrap = [sys.executable, "-ISc", _BOOTSTRAP, str(os.getpid()), *words]
    stdout = sys.stderr.fileno() if call.json else None
    try:
        with subprocess.Popen(bootstrap, env=environment, stdout=stdout) as child, _forwarding(child):
            ended_early = _attend(child, hold, grace_s)
            code = child.returncode
    except BaseException:
        hold.drop()
        raise
    loss = _give_back(hold, ended_early)
    code = code if code >= 0 else 128 - code
    if call.json:
        lost = None if loss is None else loss.to_dict()
        shown = {"name": name, "token": list(token), "fence": int(token), "exit_code": code, "lost": lost}
        call.document(shown)
    elif loss is not None:
        say(f"actorgrid: {loss}", err=True)
    return code if loss is None else loss.exit_code


@contextmanager
def _forwarding(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass signals for us on to the command; Ctrl-C reaches it by itself."""

    def forward(number: int, _frame: object) -> None:
        if child.poll() is None:
            child.send_signal(number)

    before = {number: signal.signal(number, forward) for number in FORWARDED}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _attend(child: subprocess.Popen[bytes], hold: LockHold, grace_s: float) -> bool:
    """Wait for the command's end, and force it when the lease ends; whether that was so."""
    killed_at_s: float | None = None
    while True:
        try:
            child.wait(LOOK_S)
            return killed_at_s is not None
        except subprocess.TimeoutExpired:
            now_s = time.monotonic()
        left_s = hold.left_s
        if killed_at_s is None and left_s <= grace_s + LOOK_S:
            _signal_tree(child.pid, signal.SIGTERM)
            # It must not outlive the lease, unless that is over already by somebody's word.
            killed_at_s = now_s + (left_s - LOOK_S if left_s > 0 else grace_s)
        elif killed_at_s is not None and now_s >= killed_at_s:
            _signal_tree(child.pid, signal.SIGKILL)


def _signal_tree(pid: int, number: signal.Signals) -> None:
    """Signal the command, and what it started as far as that is its descendant."""
    import psutil

    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
    except psutil.Error:
        return  # it has ended
    for process in tree:
        try:
            process.send_signal(number)
        except psutil.Error:
            continue


def _give_back(hold: LockHold, ended_early: bool) -> LockLost | None:
    """Give the lock back; gives how it was lost, if it was."""
    try:
        if ended_early:
            hold.check()
            hold.forget()
            return LockLost(
                f"the lease of lock {hold.name} was about to end",
                found="no renewal was confirmed in time",
                hint="a longer --ttl bears longer pauses",
            )
        hold.release()
    except LockLost as loss:
        return loss
    except ActorGridError as error:
        say(f"actorgrid: lock {hold.name} is given back by the end of its lease: {error.message}", err=True)
    return None


@command.command("list")
@click.argument("prefix", default="", shell_complete=candidates.locks)
@host_command
def list_(call: CommandContext, prefix: str) -> None:
    """List the locks that somebody holds, of names that begin with PREFIX."""
    answer = call.http.get("/api/locks", prefix=prefix or None, limit=10_000)
    if call.json:
        call.document(answer)
        return
    rows = []
    for lock in answer["locks"]:
        used = f"{len(lock['holders'])}/{lock['slots']}"
        for number, holder in enumerate(lock["holders"]):
            first = [lock["name"], used, str(len(lock["waiters"]))] if number == 0 else ["", "", ""]
            about = [holder["user_id"], holder["owner"], ago(holder["since"]), f"{holder['ttl_s']:g}s"]
            rows.append([*first, *about, str(holder["fence"])])
    columns = ["LOCK", "SLOTS>", "WAITING>", "USER", "OWNER", "SINCE>", "TTL>", "TOKEN>"]
    table(columns, rows, "nobody holds a lock" + (f" under {prefix}" if prefix else ""))


@command.command("release")
@click.argument("name", shell_complete=candidates.locks)
@click.option("--owner", required=True, help="Who holds it, or waits for it: see lock list.")
@click.option("--token", type=click.IntRange(0), metavar="NUMBER", help="The holder's token, as it was given to it.")
@click.option("--force", is_flag=True, help="Take it from its owner, who hears of it at its next renewal.")
@host_command
def release(call: CommandContext, /, name: str, owner: str, token: int | None, force: bool) -> None:
    """Give the lock NAME back for its owner, or take it away.

    What the lock guards may still be written to by an owner that does not know yet: tokens are for that. Who broke a
    lock is in the events.
    """
    from actorgrid.client.user import user_name

    if (token is None) != force:
        raise click.UsageError("give the holder's --token, or --force to take the lock from it")
    body: dict[str, Any] = {"owner": owner, "force": force, "user_id": user_name()}
    if token is not None:
        body["token"] = list(FencingToken.of(token))
    answer = call.http.post(f"/api/locks/{segment(name)}/release", body)
    if not answer["released"]:
        raise NotFound(f"{owner} does not hold lock {name}", asked=owner, hint="actorgrid lock list shows who does")
    call.answer(answer, f"{owner} has no part in {name} any more")
