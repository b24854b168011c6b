"""Coverage counts inside the actors of a Tree, whichever way they end, as long as the process itself ends it.

What SIGKILL, a fatal signal or the watchdog (which sends SIGKILL) ends has no moment to write what it did: those lines
are lost, and the test says so.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from coverage import Coverage

from tests.measure import CARRIER, LOADED, ROOT
from tests.otp import limits_servers

QUIET = ["no-data-collected", "module-not-measured", "module-not-imported", "already-imported"]
MARK = re.compile(r"# (counted|lost): (.+)$")
# Under make coverage every Python of the venv is measured from its start; else this one begins by itself.
PROGRAM = f"""
import runpy, sys, coverage
if coverage.Coverage.current() is None:
    runpy.run_path({str(LOADED)!r})
from tests.otp.limits_servers import end_in_every_way
end_in_every_way(sys.argv[1])
"""


def marked() -> dict[int, tuple[str, str]]:
    lines = Path(limits_servers.__file__).read_text().splitlines()
    return {n: (found[1], found[2]) for n, line in enumerate(lines, 1) if (found := MARK.search(line))}


def test_lines_of_an_actor_are_counted_unless_it_is_killed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    wish = Coverage(data_file=str(data), source=[str(ROOT / "tests" / "otp")], config_file=False, branch=True)
    for option, value in (("run:parallel", True), ("run:disable_warnings", QUIET)):
        wish.set_option(option, value)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), CARRIER: wish.config.serialize()},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr

    whole = Coverage(data_file=str(data), config_file=False)
    whole.combine([str(tmp_path)], strict=True)
    counted = set(whole.get_data().lines(limits_servers.__file__) or ())
    marks = marked()
    assert len(marks) == 9
    assert {what for line, (_, what) in marks.items() if line in counted} == {
        what for kind, what in marks.values() if kind == "counted"
    }
