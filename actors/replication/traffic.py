"""What went to each other host and came from it: the rows of ``state top``."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from .anti_entropy import AntiEntropy
from .exchange import Send
from .messages import OriginRow, PeerTraffic
from .version_vector import missing_deltas


def lags(gossip: AntiEntropy) -> dict[str, int | None]:
    """By host that this one watches (in a large cluster, its neighbours), the deltas that it is not known to hold;
    ``None``: it told nothing yet."""
    peers = gossip.peers
    return {
        name: missing_deltas(gossip.vector, peers[name].known) if name in peers and peers[name].told else None
        for name in gossip.choice.watched
    }


class PeerTraffics:
    """Bytes by host since the start; those that are no members any more are forgotten."""

    def __init__(self) -> None:
        self._sent: dict[str, int] = {}
        self._received: dict[str, int] = {}
        self._heard_s: dict[str, float] = {}

    def batches(self, sends: Iterable[Send], batch_bytes: int) -> Iterator[tuple[tuple[str, bytes], ...]]:
        """Packets as they are given to the net, by host, about so many bytes at once; they count as sent."""
        batch: list[tuple[str, bytes]] = []
        size = 0
        for send in sends:
            batch.append((send.peer, send.packet))
            self._sent[send.peer] = self._sent.get(send.peer, 0) + len(send.packet)
            size += len(send.packet)
            if size >= batch_bytes:
                yield tuple(batch)
                batch, size = [], 0
        if batch:
            yield tuple(batch)

    def came(self, host_id: str, size: int, now_s: float) -> None:
        """A packet came."""
        self._received[host_id] = self._received.get(host_id, 0) + size
        self._heard_s[host_id] = now_s

    def keep_only(self, host_ids: Container[str]) -> None:
        """The hosts of the cluster."""
        for table in (self._sent, self._received, self._heard_s):
            for host_id in [name for name in table if name not in host_ids]:
                del table[host_id]

    def rows(self, gossip: AntiEntropy, now_s: float, rows_max: int) -> tuple[list[PeerTraffic], list[OriginRow]]:
        """The slowest peers, and the origins with the most deltas."""
        peers = [
            PeerTraffic(
                host_id=name,
                sent_bytes=self._sent.get(name, 0),
                received_bytes=self._received.get(name, 0),
                behind=behind,
                heard_s=round(now_s - self._heard_s[name], 3) if name in self._heard_s else None,
            )
            for name, behind in lags(gossip).items()
        ]
        peers.sort(key=lambda row: (row["behind"] is not None, -(row["behind"] or 0), -(row["heard_s"] or 0.0)))
        origins: dict[str, OriginRow] = {}
        for (host_id, _epoch), count in gossip.vector.items():
            row = origins.setdefault(host_id, OriginRow(host_id=host_id, starts=0, deltas=0))
            row["starts"] += 1
            row["deltas"] += count
        largest = sorted(origins.values(), key=lambda row: (-row["deltas"], row["host_id"]))
        return peers[:rows_max], largest[:rows_max]
