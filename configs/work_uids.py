"""The uids that agents give to work that is kept apart, and no login, subordinate range or container has."""

from __future__ import annotations

FIRST_UID, BLOCK, BLOCKS = 1_900_000_000, 65_536, 3_700
"""Above what systemd-nspawn takes (up to 1,879,048,191), and below 2^31."""


def is_of_work(uid: int) -> bool:
    """Whether that is one of them."""
    return FIRST_UID <= uid < FIRST_UID + BLOCK * BLOCKS
