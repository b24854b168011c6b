"""Membership: which hosts can be reached, by SWIM with Lifeguard; the core decides, its owner does the I/O."""
