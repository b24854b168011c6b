"""Who we are to the host, where no credential says it."""

from __future__ import annotations

import os
from functools import cache

NAME_MAX = 128


@cache
def user_name() -> str:
    """The name of this process's user on this machine; ``uid-N`` for one without a name (in many containers)."""
    import getpass

    try:
        return getpass.getuser()[:NAME_MAX]
    except (KeyError, OSError):
        return f"uid-{os.getuid()}"
