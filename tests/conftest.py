from __future__ import annotations

import gc
import shutil
import signal
from pathlib import Path

import pytest
from hypothesis import settings

from actorgrid.configs.paths import HostPaths
from tests.again import pytest_sessionstart, pytest_testnodedown  # noqa: F401 - hooks

# A shell that puts the tests into the background has them ignore SIGINT, and so every process they start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test says how fast its machine is, least of all while every process is being measured.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


LONG_FIRST = ("tests/system/", "tests/host/", "tests/docs/", "tests/otp/", "tests/work/", "tests/cli/", "tests/client/")
"""Where files take longest, most of it in processes that start. These files are begun first: a process that begins one
late leaves the other idle at the end.
"""


@pytest.hookimpl(tryfirst=True)  # before the marks are asked for by -m
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests into their tiers, and those that take long to the front."""
    for item in items:
        if item.nodeid.startswith("tests/system/"):
            item.add_marker(pytest.mark.system)
    items.sort(key=lambda item: next((n for n, folder in enumerate(LONG_FIRST) if item.nodeid.startswith(folder)), 99))


def pytest_collection_finish() -> None:
    """Take what collecting made, ten thousand tests, from what the collector looks at: it stays until the end."""
    gc.collect()
    gc.freeze()


_sockets_of_hosts: set[Path] = set()
_make = HostPaths.make


def _make_and_note(paths: HostPaths) -> None:
    _make(paths)
    _sockets_of_hosts.add(paths.runtime_dir)


HostPaths.make = _make_and_note  # type: ignore[method-assign]


def pytest_unconfigure() -> None:
    """Remove the directories of sockets that hosts inside of this process made: not all of them stop in order."""
    from actorgrid.actors.host.left_sockets import is_listened_in

    for folder in _sockets_of_hosts:
        if folder.is_dir() and not folder.is_symlink() and not is_listened_in(folder):
            shutil.rmtree(folder, ignore_errors=True)
