"""``run``: a command on the cluster that feels as if it ran here."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from actorgrid.endings import how_it_ended
from actorgrid.errors import BodyTooLarge, HostUnreachable, ResultGone, WrongState

from .attach import TerminalAttendance, detach_keys_option
from .call import CommandContext, host_options, pass_call
from .printing import say
from .work import request, work_options

if TYPE_CHECKING:
    from .detach_keys import DetachKeys
    from .follow import JobFollower

MAX_STDIN_BYTES = 32 * 2**20
TIMED_OUT_CODE = 124
CANCELLED_CODE = 130
PROGRESS_INTERVAL_S = 0.5
SPINNER = "|/-\\"


@click.command(context_settings={"allow_interspersed_args": False})
@work_options
@click.option("--stdin", "send_stdin", is_flag=True, help="Send our standard input (at most 32 MiB) to the command.")
@click.option("--pty", is_flag=True, help="Give it a terminal, and have that here: actorgrid run --pty -- bash.")
@click.option("-d", "--detach", is_flag=True, help="Print the job's id and leave.")
@detach_keys_option
@host_options
@click.argument("words", metavar="-- CMD [ARGS]...", nargs=-1, required=True)
@pass_call
def command(
    call: CommandContext,
    /,
    words: tuple[str, ...],
    send_stdin: bool,
    pty: bool,
    detach: bool,
    keys: DetachKeys,
    **options: Any,
) -> int:
    """Run a command as a job; its output and exit status are yours.

    \b
        actorgrid run --gpus 0.25 -- python train.py
        actorgrid run --gpus 2 --gpu-model H100 --retries 3 --detach -- ./sweep.sh

    Exits as the command did (128+n when signal n killed it, 124 at its time limit, 130 when cancelled). Ctrl-C
    cancels the job, Ctrl-C again leaves it to itself. Lines of a gang's members begin with their rank. What --out
    names is fetched when the job has ended. With --pty, Ctrl-C and Ctrl-Z are the job's, and Ctrl-] d leaves it to
    itself: actorgrid attach has its terminal again. If the agent restarts meanwhile, the job and this command go on.
    With --json the job's output goes to stderr, and the ended job is the document on stdout.
    """
    if pty:
        _check_terminal(call, send_stdin, detach, options)
    told_by = _desktop(options) if not detach else None
    stdin = _read_stdin() if send_stdin else None
    wanted = request(call, list(words), stdin, **options)
    if pty:
        wanted["pty"] = True
    # Sent twice it is still one job: the id is ours.
    accepted = call.http.post("/api/jobs", wanted, repeat=True)
    job_id = accepted["job_id"]
    if detach:
        call.answer(accepted, job_id)
        return 0
    if pty:
        attended = TerminalAttendance(call, job_id, keys, on_interrupt=lambda: _cancel_waiting(call, job_id))
        ended = attended.run()
        if ended is None:
            return attended.left_with
        job = ended
    else:
        job = _attend(call, job_id, options["gang"])
    if told_by is not None:
        _tell(told_by, job)
    code = exit_code(job)
    fetched: dict[str, Any] = {}
    if options["outputs"]:
        in_place = options["working_dir"] is None and call.speaks_to_this_machine_alone
        fetched = _outputs(call, job_id, in_place)
        if fetched["missing"] or fetched["problem"]:
            code = code or 1
    if call.json:
        call.document({"job_id": job_id, "state": job["state"], "exit_code": code, "job": job, **fetched})
    elif job["state"] != "succeeded":
        say(f"actorgrid: {ending(job)}", err=True)
    return code


def _desktop(options: dict[str, Any]) -> str | None:
    """The program that shows here that it has ended, if that is asked for; takes it out. Raises NotSupported."""
    from actorgrid.notification_words import DESKTOP

    if DESKTOP not in options["notify"]:
        return None
    from .desktop import check_desktop

    options["notify"] = tuple(each for each in options["notify"] if each != DESKTOP)
    if not options["notify"]:
        options["notify_on"] = []
    return check_desktop()


def _tell(program: str, job: dict[str, Any]) -> None:
    from .desktop import ended_text, tell_desktop

    fault = tell_desktop(program, *ended_text([job]))
    if fault:
        say(f"actorgrid: not shown on the desktop: {fault}", err=True)


def _check_terminal(call: CommandContext, send_stdin: bool, detach: bool, options: dict[str, Any]) -> None:
    """Look whether a terminal can be given and had; puts what it is into the job's variables. Raises NotATerminal."""
    from .own_terminal import check_terminal, terminal_variables

    if send_stdin:
        raise click.UsageError("--pty and --stdin both say what the command reads: give one of them")
    if not detach:
        if call.json:
            raise click.UsageError("a terminal is no document: --json with --pty takes --detach as well")
        check_terminal("leave --pty out; or say --detach, and actorgrid attach JOB where there is one")
    options["env"] = {**terminal_variables(), **options["env"]}


def _cancel_waiting(call: CommandContext, job_id: str) -> None:
    say(f"actorgrid: cancelling {job_id} (again to leave it to itself)", err=True)
    _cancel(call, job_id, lambda text: say(f"actorgrid: {text}", err=True))


def _outputs(call: CommandContext, job_id: str, in_place: bool) -> dict[str, Any]:
    """Have what the job kept here; *in_place* it is: the job ran in a directory of this machine."""
    from actorgrid.client.job_files import JobFiles

    from .get import warn
    from .show import progress

    files = JobFiles(call.http, job_id)
    try:
        if in_place:
            written = [Path(each.path) for each in files.listed()]
        else:
            with progress(call.json) as report:
                written = files.fetch("", ".", lambda each, done, total: report(each, done, total))
    except (ResultGone, WrongState) as error:  # it never ran, or its host is lost
        return {"files": [], "missing": [], "problem": error.message}
    if not call.json:
        warn(files)
    told = files.answer(written)
    return {name: told[name] for name in ("files", "missing", "problem")}


def _read_stdin() -> bytes:
    content = sys.stdin.buffer.read(MAX_STDIN_BYTES + 1)
    if len(content) > MAX_STDIN_BYTES:
        raise BodyTooLarge(
            f"standard input is larger than {MAX_STDIN_BYTES} bytes", hint="put it into a file the command can read"
        )
    return content


def exit_code(job: dict[str, Any]) -> int:
    """The status this process leaves with for an ended job."""
    last = job["attempts"][-1] if job.get("attempts") else {}
    error = job.get("error") or last.get("error") or {}
    if job["state"] == "succeeded":
        return 0
    if job["state"] == "cancelled":
        return CANCELLED_CODE
    if error.get("code") == "TaskTimedOut":
        return TIMED_OUT_CODE
    if last.get("signal"):
        return 128 + int(last["signal"])
    return int(last.get("exit_code") or 1)


def ending(job: dict[str, Any]) -> str:
    """The line that says how a job ended."""
    last = job["attempts"][-1] if job.get("attempts") else {}
    error = job.get("error") or last.get("error") or {}
    tries = f" after {len(job['attempts'])} attempts" if len(job.get("attempts", [])) > 1 else ""
    reason = str(error.get("message") or "")
    if last.get("signal") and not reason:
        reason = how_it_ended(None, last["signal"])
    elif last.get("exit_code") and not reason:
        reason = f"exit status {last['exit_code']}"
    text = f"{job['job_id']} {job['state']}{tries}" + (f": {reason}" if reason else "")
    return text + (f" ({error['hint']})" if error.get("hint") else "")


def held_text(enforced_by: dict[str, str]) -> str:
    """The line that says who enforces what a job was granted; empty while its host has not said."""
    words: dict[str, list[str]] = {}
    for name, who in enforced_by.items():
        words.setdefault(who, []).append(name.replace("gpu_", "GPU "))
    parts = [f"{who}: {', '.join(names)}" for who, names in words.items()]
    return f"what it was granted is enforced by ({'; '.join(parts)})" if parts else ""


def _attend(call: CommandContext, job_id: str, gang: int) -> dict[str, Any]:
    """Carry output until the job ends. The first Ctrl-C (or SIGTERM) cancels it, the second leaves."""
    from .follow import JobFollower
    from .logs import binary
    from .ranks import RANKS_MAX, Ranks

    progress = WaitProgress(call, job_id)

    def notice(text: str) -> None:
        progress.clear()
        say(f"actorgrid: {text}", err=True)

    stdout = binary("stderr" if call.json else "stdout")
    outputs = {"stdout": stdout, "stderr": binary("stderr")}
    ranks = Ranks(min(gang, RANKS_MAX), outputs) if gang > 1 else None
    follower = JobFollower(job_id, call.new_http, outputs, notice, before_output=progress.close, ranks=ranks)
    if gang > RANKS_MAX:
        notice(f"output of ranks 0 to {RANKS_MAX - 1}; the others': actorgrid logs {job_id} --rank R")
    asked_to_stop = threading.Event()

    def on_term(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, on_term) if _in_main_thread() else None
    follower.start()
    try:
        while True:
            try:
                while not follower.finished.wait(PROGRESS_INTERVAL_S):
                    progress.show(follower)
                progress.clear()
                return follower.result()
            except KeyboardInterrupt:
                if asked_to_stop.is_set():
                    notice(f"left; {job_id} may still be stopping: actorgrid ps")
                    raise
                asked_to_stop.set()
                notice(f"cancelling {job_id} (again to leave it to itself)")
                threading.Thread(target=_cancel, args=(call, job_id, notice), daemon=True).start()
    finally:
        progress.close()
        follower.close()
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _cancel(call: CommandContext, job_id: str, notice: Any) -> None:
    from actorgrid.client.http import segment

    try:
        call.http.post(f"/api/jobs/{segment(job_id)}/cancel", repeat=True)
    except HostUnreachable as error:
        notice(f"could not cancel: {error.message}; once the agent is back: actorgrid cancel {job_id}")


class WaitProgress:
    """One line on a terminal's stderr while a job waits for its place; one, once it runs, on who holds it to its GPUs;
    nothing elsewhere."""

    def __init__(self, call: CommandContext, job_id: str) -> None:
        self._call = call
        self._job_id = job_id
        self._active = sys.stderr.isatty()
        self._watches = self._active
        self._shown = False
        self._lock = threading.Lock()
        self._beats = 0

    def show(self, follower: JobFollower) -> None:
        """Look the job up and draw the line anew."""
        if not self._watches or follower.silent:
            return
        from actorgrid.client.http import segment

        try:
            job = self._call.http.get(f"/api/jobs/{segment(self._job_id)}", timeout_s=5.0)
        except HostUnreachable:
            return
        if job["state"] not in ("queued", "placed"):
            self._watches = False
            self.close()
            if held := held_text(job.get("enforced_by") or {}):
                say(f"actorgrid: {held}", err=True)
            return
        self._beats += 1
        with self._lock:
            if not self._active:  # output began while we asked
                return
            sys.stderr.write(f"\r\x1b[K{SPINNER[self._beats % 4]} {self._job_id} {job['state']}")
            sys.stderr.write(f"; actorgrid why {self._job_id[:8]} tells more")
            sys.stderr.flush()
            self._shown = True

    def clear(self) -> None:
        """Take the line away."""
        with self._lock:
            self._clear()

    def close(self) -> None:
        """Take the line away for good."""
        if self._active or self._shown:
            with self._lock:
                self._active = False
                self._clear()

    def _clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._shown = False
