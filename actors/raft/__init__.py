"""The Raft core and its parts, which decide without a clock, a socket or a disk; ``storage`` keeps what they decide."""
