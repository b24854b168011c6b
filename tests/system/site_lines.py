"""Lines between sites of real hosts: each site has a bridge of its own, and frames between two take their time.

A thread carries frames from one bridge to all others, as a switch with long cables does, later by the delay, and not at
all over a line that is cut. It reads and writes them with the kernel's own header before each (PACKET_VNET_HDR), so
that large segments and unfinished checksums go through as they are. So no traffic shaping of the kernel is needed.
"""

from __future__ import annotations

import heapq
import os
import selectors
import socket
import threading
import time
from collections.abc import Mapping
from itertools import combinations

from tests.system.net_wires import Wires, enter

FRAME_BYTES_MAX = 2**17
PACKET_VNET_HDR = 15
BEHIND_FRAMES_MAX = 20_000


class SiteLines:
    """*sites*: the hosts of each, by number. *delay_s*: one way."""

    def __init__(self, wires: Wires, sites: Mapping[str, list[int]], delay_s: float) -> None:
        self.delay_s = delay_s
        self.cut: set[frozenset[str]] = set()
        self.carried_bytes = 0
        self._switch = wires.switch
        for number, (site, hosts) in enumerate(sites.items()):
            bridge = f"site{number}"
            wires.in_switch("link", "add", bridge, "type", "bridge", "stp_state", "0")
            wires.in_switch("link", "set", bridge, "up")
            wires.in_switch("link", "add", f"in-{site}", "type", "veth", "peer", "name", f"out-{site}")
            wires.in_switch("link", "set", f"in-{site}", "master", bridge, "up")
            wires.in_switch("link", "set", f"out-{site}", "up")
            for host in hosts:
                wires.in_switch("link", "set", f"p{host}", "master", bridge)
        self._sites = list(sites)
        self._wake_read, self._wake_write = os.pipe()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._carry, name="lines between sites", daemon=True)
        self._thread.start()
        assert self._ready.wait(60), "the lines between sites do not come up"

    def cut_off(self, site: str) -> None:
        """Cut the lines between that site and all others."""
        self.cut = {frozenset(pair) for pair in combinations(self._sites, 2) if site in pair}

    def heal(self) -> None:
        """All lines carry again."""
        self.cut = set()

    def close(self) -> None:
        """End the thread."""
        os.write(self._wake_write, b"x")
        self._thread.join(60)
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _carry(self) -> None:
        enter(self._switch)
        ends: dict[str, socket.socket] = {}
        chosen = selectors.DefaultSelector()
        chosen.register(self._wake_read, selectors.EVENT_READ, "")
        for site in self._sites:
            end = ends[site] = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            end.setsockopt(263, PACKET_VNET_HDR, 1)  # SOL_PACKET
            end.bind((f"out-{site}", 0))
            end.setblocking(False)
            chosen.register(end, selectors.EVENT_READ, site)
        self._ready.set()
        behind: list[tuple[float, int, str, bytes]] = []
        count = 0
        while True:
            wait_s = max(0.0, behind[0][0] - time.monotonic()) if behind else None
            for key, _ in chosen.select(wait_s):
                if key.data == "":
                    for end in ends.values():
                        end.close()
                    chosen.close()
                    return
                for frame in self._read(ends[key.data]):
                    for site in self._sites:
                        if site != key.data and frozenset((site, key.data)) not in self.cut:
                            count += 1
                            if len(behind) < BEHIND_FRAMES_MAX:
                                heapq.heappush(behind, (time.monotonic() + self.delay_s, count, site, frame))
            now = time.monotonic()
            while behind and behind[0][0] <= now:
                _, _, site, frame = heapq.heappop(behind)
                try:
                    ends[site].send(frame)
                    self.carried_bytes += len(frame)
                except OSError:
                    pass  # a full queue drops it, as a switch would

    @staticmethod
    def _read(end: socket.socket) -> list[bytes]:
        found = []
        for _ in range(64):
            try:
                frame, (_, _, kind, *_) = end.recvfrom(FRAME_BYTES_MAX)
            except BlockingIOError:
                break
            if kind != 4:  # PACKET_OUTGOING: our own
                found.append(frame)
        return found
