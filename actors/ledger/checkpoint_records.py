"""What the ledger knows of the last checkpoint of a job."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from actorgrid.checkpoints import CheckpointWish


class CheckpointRecord(TypedDict):
    """The last checkpoint of a job."""

    attempt: int
    """The number of the attempt that made it."""
    number: int
    """Which of that attempt's it is, from 1."""
    size_bytes: int
    """As it is kept."""
    at: float
    """When it was entered."""


class CheckpointFields(TypedDict):
    """What a job's record has of checkpoints."""

    checkpoint: NotRequired[CheckpointWish]
    """How they are made, where it has any."""
    checkpoint_digest: NotRequired[str]
    """SHA-256 of the file of the last one, in hex."""
    last_checkpoint: NotRequired[CheckpointRecord]
    """What is known of it."""
