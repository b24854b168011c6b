"""Tells the person at this machine's screen what has ended: by the desktop's own command."""

from __future__ import annotations

import html
import os
import shutil
import subprocess  # nosec B404 - the desktop's own program, with arguments, no shell
import sys
from typing import Any

from actorgrid.errors import NotSupported

TIMEOUT_S = 10.0
NOTIFY_SEND, OSASCRIPT = "notify-send", "osascript"
_MAC = ("on run argv", "display notification (item 2 of argv) with title (item 1 of argv)", "end run")
HINT = "where nobody sits, let the cluster tell: --notify webhook:URL or mail:ADDRESS (docs/notifications.md)"


def check_desktop() -> str:
    """The program that shows notifications here. Raises NotSupported: before anything is waited for."""
    name = OSASCRIPT if sys.platform == "darwin" else NOTIFY_SEND
    found = shutil.which(name)
    if found is None:
        raise NotSupported(
            "no notification can be shown here", asked="desktop", found=f"there is no {name} on the PATH", hint=HINT
        )
    if name == NOTIFY_SEND and not any(
        os.environ.get(each) for each in ("DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR")
    ):
        raise NotSupported(
            "no notification can be shown here", asked="desktop", found="no session of a desktop", hint=HINT
        )
    return found


def tell_desktop(program: str, title: str, text: str) -> str:
    """Show it; gives why it could not be shown, else nothing: by then the job has ended, and its exit status counts."""
    if os.path.basename(program) == OSASCRIPT:
        argv = [program, *(part for line in _MAC for part in ("-e", line)), title, text]
    else:
        # The text is markup there.
        argv = [program, "--app-name=actorgrid", "--", title, html.escape(text, quote=False)]
    try:
        ended = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S)  # nosec B603
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{os.path.basename(program)}: {error}"
    if ended.returncode:
        said = ended.stderr.decode("utf-8", "replace").strip()[:200]
        return f"{os.path.basename(program)} ended with {ended.returncode}: {said}"
    return ""


def ended_text(jobs: list[dict[str, Any]]) -> tuple[str, str]:
    """Title and text for jobs that have ended."""
    lines = [f"{job.get('name') or job['job_id']} ({job['job_id'][:8]}) {job['state']}" for job in jobs]
    title = f"actorgrid: {jobs[0]['state']}" if len(jobs) == 1 else f"actorgrid: {len(jobs)} jobs have ended"
    return title, "\n".join(lines[:5]) + (f"\nand {len(lines) - 5} more" if len(lines) > 5 else "")
