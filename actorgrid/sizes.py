"""How large things may be on their way from a client to every voter's log: each bound here follows from the one before.

    a string of a job's command or environment     ARGUMENT_BYTES_MAX     what execve takes of one
    all of them together                           EXEC_BYTES_MAX         what execve takes of all, with room for ours
    an entry of the ledger's log                   ENTRY_BYTES_MAX        many jobs submitted together
    a message between voters                       RAFT_MESSAGE_BYTES_MAX one entry with what surrounds it

A message that is larger than a frame between hosts (1 MiB) goes as a stream, so that an entry that one voter took can
always be brought to the others. What holds many bytes (functions, their arguments, standard input) is no part of an
entry: it goes as a file, and the entry has its digest. The record in the log and the message between processes of one
host (64 MiB each) are larger than any entry.
"""

from __future__ import annotations

ARGUMENT_BYTES_MAX = 128 * 1024
"""With its final zero byte: Linux's MAX_ARG_STRLEN, which no setting raises."""
EXEC_BYTES_MAX = 2**20
"""Command and environment with a pointer to each string. Linux takes a quarter of the stack's limit (8 MiB by default,
so 2 MiB); half of that is left to what hosts add (devices, ranks, the submitter's rights) and to lower limits."""
PATH_BYTES_MAX = 4096
"""Linux's PATH_MAX."""
STATE_KEY_MAX = 1024
"""Characters of a key of the shared state, and of any part of a path that names something."""
NAME_MAX = 256
"""Characters of a GPU model's name and of a device's id."""
WHOLE_MAX = 2**53 - 1
"""Whole numbers that every reader of JSON takes."""
ANNOTATIONS_MAX = 64
ANNOTATION_BYTES_MAX = 4096
"""Of all annotations of a job together: they are on every host for as long as the job is."""
ENTRY_BYTES_MAX = 16 * 2**20
RAFT_MESSAGE_BYTES_MAX = ENTRY_BYTES_MAX + 64 * 1024
