from __future__ import annotations

import gc
import shutil
import signal
import warnings
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import settings

from actorgrid.configs.paths import HostPaths
from tests.again import pytest_testnodedown, start_anew  # noqa: F401 - the first is a hook

# A shell that puts the tests into the background has them ignore SIGINT, and so every process they start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test says how fast its machine is, least of all while every process is being measured.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


def pytest_sessionstart(session: pytest.Session) -> None:
    start_anew(session)
    load_own_part(session.config)


def load_own_part(config: pytest.Config) -> None:
    """Of several processes of tests, each loads its part of the modules before it collects all of them.

    pytest writes every assertion of a module anew where it finds no bytecode of that: half a minute of CPU for all of
    these tests. Processes that go through them side by side would each do that for each.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None:
        return
    number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    places = [config.invocation_params.dir / arg.split("::")[0] for arg in config.args]
    files = [file for place in places for file in (sorted(place.rglob("test_*.py")) if place.is_dir() else [place])]
    for file in files[number::count]:
        # What does not load now is loaded as it is collected, and says then why not.
        with warnings.catch_warnings(action="error"), suppress(Exception, pytest.skip.Exception):
            import_module(".".join(file.resolve().relative_to(config.rootpath).with_suffix("").parts))


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
