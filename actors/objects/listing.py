"""What people are shown of the object store."""

from __future__ import annotations

from typing import Any

from actorgrid.transports.object_frames import DISK, MEMORY

from .records import Space


def shown(space: Space, host_id: str) -> dict[str, Any]:
    """A space, and its objects, the largest first. *host_id*: of the store."""
    objects = sorted(space.objects.values(), key=lambda stored: -stored.key.size)
    return {
        "user": space.about.user,
        "session": space.about.session,
        "pid": space.about.pid,
        "home": space.about.home or host_id,
        "count": len(objects),
        "bytes": sum(stored.key.size for stored in objects),
        "memory_bytes": space.blocks.used[MEMORY],
        "disk_bytes": space.blocks.used[DISK],
        "processes": len(space.opened_by),
        "objects": [
            {
                "id": f"{stored.key.store[:8]}-{stored.key.number}",
                "bytes": stored.key.size,
                "where": stored.kind,
                "state": stored.state.value,
                "references": sum(stored.holds.values()) + len(stored.gifts) + stored.within,
                "readers": len(stored.pins),
            }
            for stored in objects
        ],
    }
