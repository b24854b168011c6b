"""How another door of the host says to this one for whom it asks.

By the first header the HTTP door knows that the host's gRPC door asks, and by the second for whom: the address of its
client. The secret is of one start of the HTTP door, and comes to the other by its standard input.
"""

from __future__ import annotations

DOOR_HEADER, PEER_HEADER = "X-Actorgrid-Door", "X-Actorgrid-Peer"
