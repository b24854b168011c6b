"""What a measured process does at its start: see ``measure.py``, which has every Python of the venv load this file.

coverage has patches of its own for forks and ``os._exit``, but they pile up with each generation of forks: the shim of
an attempt would save the data of all its ancestors. Here a process saves its own, once.
"""

import os
import signal
from collections.abc import Callable
from typing import Any, NoReturn

import coverage

WISH = "COVERAGE_PROCESS_CONFIG"  # coverage's own
CARRIER = "LC_ACTORGRID_MEASURE"


def begin() -> None:
    """Measure this process and its forks until each ends, by ``os._exit``, ``exec`` or SIGTERM too."""
    config = os.environ.get(CARRIER)
    if config is None:
        return
    os.environ[WISH] = config
    coverage.process_startup()
    leave, execute, handle = os._exit, os.execve, signal.signal

    def forked() -> None:
        before = coverage.Coverage.current()
        if before is not None:
            before._auto_save = False  # what was measured before the fork is the parent's
            before.stop()
        os.environ[WISH] = config
        coverage.process_startup(force=True)

    def save_and_leave(status: int) -> NoReturn:
        save()
        leave(status)

    def save_and_execute(*arguments: Any) -> None:
        save()
        execute(*arguments)

    def save_and_die(_number: int, _frame: object) -> None:
        save()
        handle(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    def handle_saving(number: int, handler: Any) -> Callable[..., Any] | int | None:
        return handle(number, save_and_die if number == signal.SIGTERM and handler == signal.SIG_DFL else handler)

    os.register_at_fork(after_in_child=forked)
    os._exit, os.execve, signal.signal = save_and_leave, save_and_execute, handle_saving


def save() -> None:
    """Write what this process did; a process that must end ends even if that cannot be written."""
    current = coverage.Coverage.current()
    if current is not None:
        try:
            current.stop()
            current.save()
        except (coverage.CoverageException, OSError):
            return


begin()
