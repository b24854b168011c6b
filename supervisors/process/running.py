"""Which shard runs in this thread, and which of its processes has its turn."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .base import Process
    from .shard import Shard


class RunningShard(threading.local):
    """The shard that runs in each thread."""

    shard: Shard | None = None

    def get(self) -> Shard | None:
        """The shard of this thread."""
        return self.shard

    def set(self, shard: Shard | None) -> None:
        """Note that it runs, or that none does."""
        self.shard = shard


running_shard = RunningShard()


def current_process() -> Process | None:
    """The process whose code calls this; ``None`` outside of any."""
    shard = running_shard.shard
    found: Process | None = None if shard is None else shard.core.current  # type: ignore[assignment]
    return found
