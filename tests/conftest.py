from __future__ import annotations

import signal

import pytest
from hypothesis import settings

# A shell that puts the tests into the background has them ignore SIGINT, and so every process they start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test says how fast its machine is, least of all while every process is being measured.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole clusters first: a process that begins with the longest files late leaves the other with nothing to do."""
    items.sort(key=lambda item: "tests/system/" not in item.nodeid)
