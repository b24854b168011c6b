"""The bounds of RDMA between hosts, and what happens at each."""

from __future__ import annotations

from dataclasses import dataclass

SIGNAL_EVERY = 32
"""Of this many sends one asks for a completion: each costs a poll's work and 1 µs of pyverbs's own."""


@dataclass(frozen=True, slots=True)
class RdmaLimits:
    """Every bound of RDMA between hosts; of one peer where nothing else is said."""

    slot_bytes: int = 8192
    """A slot of the receive queue: what is larger, with its head, is fetched by the receiver (RDMA READ)."""
    receive_slots: int = 1024
    """Slots of the one receive queue of the process; a peer has its share of them as credits."""
    credits: int = 32
    """Messages on their way to one peer that it has not taken out of its slots; then they wait here."""
    spare_credits: int = 2
    """And this many reports of what was taken, which go without a credit: else two full sides wait for each other."""
    send_slots: int = 128
    """Depth of the send queue of a pair; then messages wait here."""
    inline_bytes: int = 128
    """Sent out of the work request itself, where the device takes that."""
    reads: int = 4
    """Fetches under way from one peer; the next waits."""
    messages: int = 1024
    """Messages that the other side has not consumed; then MailboxFull."""
    unconsumed_bytes: int = 16 * 2**20
    """Their bytes; then MailboxFull."""
    message_bytes: int = 4 * 2**20
    """One message; above it FrameTooLarge."""
    exposed_bytes: int = 64 * 2**20
    """Memory of this process that its peers may fetch from, all together; then what is to be fetched waits."""
    landing_bytes: int = 64 * 2**20
    """Memory of this process in which fetches land, all together; then they wait."""
    peers: int = 24
    """Pairs of one process; one more stays with TLS. Their credits fit into the receive slots."""
    completions: int = 0
    """Depth of the completion queue; 0: for all slots and the queues of all pairs, so that it cannot overrun."""
    report_s: float = 0.005
    """What was consumed is told at the latest then; before, it goes along with messages of our own."""
    again_first_s: float = 1.0
    again_max_s: float = 60.0
    """A pair that failed is made anew after this, twice as long each time it fails again, up to the second."""
    resume_s: float = 30.0
    """Without a TLS link for this long, what is under way is given up."""
    completions_a_turn: int = 256
    """Completions dealt with in a turn of the loop; then other descriptors have theirs."""

    def __post_init__(self) -> None:
        assert self.peers * (self.credits + self.spare_credits) <= self.receive_slots, "credits without slots"
        assert self.credits + self.spare_credits + self.reads + SIGNAL_EVERY < self.send_slots, "a queue that can fill"
