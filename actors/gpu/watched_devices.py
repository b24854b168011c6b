"""Of which devices the memory of work is watched: those whose driver told, with the last samples, who has how much.

No I/O and no clock. What is said here goes into the ledger, where each change is an entry: a driver that tells it now
and then is believed only once it has told it for ``BELIEVED_S``.
"""

from __future__ import annotations

from collections.abc import Mapping

from actorgrid.actors.ledger.record_types import HostRecord

from .readings import Readings

BELIEVED_S = 60.0


class WatchedDevices:
    """Take samples; ``now`` says of which devices memory is watched. As many entries as devices are kept."""

    def __init__(self) -> None:
        self._silent_at: dict[str, float] = {}
        self._telling: set[str] = set()

    def take(self, readings: Mapping[str, Readings], now_s: float) -> None:
        """Take a sample of some devices."""
        for uuid, sample in readings.items():
            if sample.processes is None or any(process.memory_mib is None for process in sample.processes):
                self._silent_at[uuid] = now_s
                self._telling.discard(uuid)
            else:
                self._telling.add(uuid)

    def listed(self, uuids: frozenset[str]) -> None:
        """Forget devices that are not among *uuids*: those that there are."""
        self._telling &= uuids
        self._silent_at = {uuid: at for uuid, at in self._silent_at.items() if uuid in uuids}

    def now(self, now_s: float, *, ends: bool) -> frozenset[str]:
        """The devices on which work that overdraws is seen and ended; *ends*: whether this host ends it."""
        if not ends:
            return frozenset()
        return frozenset(
            uuid for uuid in self._telling if uuid not in self._silent_at or now_s - self._silent_at[uuid] >= BELIEVED_S
        )


def watched_in(host: HostRecord | None) -> frozenset[str]:
    """The devices that *host* says it watches."""
    devices = [] if host is None else host["devices"]
    return frozenset(device["uuid"] for device in devices if device.get("watched") is True)


def dmem_in(host: HostRecord | None) -> frozenset[str]:
    """The devices of which *host* says that the kernel holds work to its memory."""
    devices = [] if host is None else host["devices"]
    return frozenset(device["uuid"] for device in devices if device.get("dmem") is True)


def mps_in(host: HostRecord | None) -> frozenset[str]:
    """The devices of which *host* says that MPS holds their shares."""
    devices = [] if host is None else host["devices"]
    return frozenset(device["uuid"] for device in devices if device.get("mps") is True)
