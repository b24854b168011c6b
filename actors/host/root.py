"""An agent that runs as root: so does the work of whoever may submit any."""

from __future__ import annotations

from typing import Literal

from actorgrid.errors import StartFailed


def warning_of_root(uid: int, mode: Literal["warn", "accept", "refuse"]) -> str | None:
    """What to tell who starts an agent with this uid. Raises StartFailed where ``security.work_as_root`` refuses."""
    if uid != 0 or mode == "accept":
        return None
    if mode == "refuse":
        raise StartFailed(
            "the agent would run as root, and so would everybody's work",
            asked="security.work_as_root = refuse",
            found="uid 0",
            hint="start it as a user of its own, or with --set security.work_as_root=accept",
        )
    return (
        "running as root: work runs as root, too, and may do anything on this machine. Start the agent as a user of "
        "its own, or say that it is meant: --set security.work_as_root=accept"
    )
