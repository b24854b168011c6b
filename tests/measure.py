"""``python -m tests.measure [pytest arguments]``: run the tests and measure every process that runs our code.

A .pth file, there only while this runs, has every Python of the venv load ``measured_process.py``; that measures the
process if the wish to is in its environment. The wish travels in a locale variable (LC_*): the zygote of users' work
is exec'd with a bare environment, so that nothing of the agent is in what it forks, and the locale is in that. The
product knows nothing of this.

Not measured: a process that is killed outright, and what a function that forks does afterwards itself (tracing
begins anew with the next call).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from coverage import Coverage

CARRIER = "LC_ACTORGRID_MEASURE"  # the same in measured_process.py, which is loaded by its path
ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "coverage"
LOADED = ROOT / "tests" / "measured_process.py"
HOOK = Path(sysconfig.get_path("purelib")) / "actorgrid_measure.pth"
# One line, as .pth files are read.
HOOK_LINE = f"import os; {CARRIER!r} in os.environ and __import__('runpy').run_path({str(LOADED)!r})\n"


def main(arguments: list[str]) -> int:
    """Gives pytest's exit status, or that of a total below ``fail_under``."""
    os.chdir(ROOT)
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    config = Coverage(data_file=str(FOLDER / "data"), config_file=str(ROOT / "pyproject.toml")).config.serialize()
    HOOK.write_text(HOOK_LINE)
    try:
        environment = {**os.environ, CARRIER: config}
        status = subprocess.run([sys.executable, "-m", "pytest", *arguments], env=environment, check=False).returncode
    finally:
        HOOK.unlink(missing_ok=True)
    coverage = [sys.executable, "-m", "coverage"]
    data = f"--data-file={FOLDER / 'data'}"
    # A process killed while it wrote leaves a broken file: said, and left out.
    subprocess.run([*coverage, "combine", "--quiet", data], check=True)
    for broken in FOLDER.glob("data.*"):
        broken.unlink()
    report = subprocess.run([*coverage, "report", data], check=False).returncode
    return status or report


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
