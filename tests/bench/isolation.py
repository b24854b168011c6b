"""What keeping work apart takes of an attempt: the CPU time of the child's set-up, beside a child that does nothing."""

from __future__ import annotations

import os
import resource
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from actorgrid.actors.work.apart_records import ApartSpec
from actorgrid.actors.work.isolation import calls, confine
from actorgrid.actors.work.isolation.own_folders import make_own_folders
from actorgrid.actors.work.isolation.probes import try_out
from actorgrid.actors.work.isolation.uids import FIRST_UID

from .figures import Figure, Skipped, registry

CHILDREN = 200


@registry.add("isolation")
def isolation(runs: int) -> Iterator[Figure]:
    """Each level, set in children of a small process, as a shim's child sets it."""
    means = try_out()
    if means.best != "full":
        raise Skipped(f"work cannot be kept apart here: {'; '.join(means.missing())}")
    calls.get_ready()  # as the zygote does
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        attempt = data / "attempts" / "a.1"
        attempt.mkdir(parents=True)
        keys = [data / name for name in ("security", "ledger", "state", "audit")]
        for key in keys:
            key.mkdir()
        basic: ApartSpec = {
            "level": "basic",
            "hidden": [str(key) for key in keys],
            "no_new_privs": True,
            "uid": 0,
            "attempt": "",
            "read": [],
            "gang": False,
        }
        full: ApartSpec = {
            **basic,
            "level": "full",
            "hidden": [str(data)],
            "uid": FIRST_UID,
            "attempt": str(attempt),
        }
        home = str(attempt / "home")

        def be_apart() -> None:
            make_own_folders(full, Path("/nonexistent"))
            confine.enter_own_namespaces(full, home)
            confine.become(full, os.getppid())

        for name, act in (("basic", lambda: confine.confine_a_little(basic)), ("full", be_apart)):
            values = [1000 * max(0.0, _cpu_s(act) - _cpu_s(lambda: None)) for _ in range(runs)]
            yield Figure(
                f"isolation {name}, CPU an attempt", "ms", values, False, must=2.0, note="without a pid namespace"
            )


def _cpu_s(act: Callable[[], None]) -> float:
    """The median CPU time of a child that does *act*, and of its parent meanwhile."""
    taken = []
    for _ in range(CHILDREN):
        before = _used_s()
        child = os.fork()
        if child == 0:
            try:
                act()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        taken.append(_used_s() - before)
    return statistics.median(taken)


def _used_s() -> float:
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in both)
