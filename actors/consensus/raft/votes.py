"""What is asked and answered in an election. Both sides tell what they know to be committed (``_learn_commit``)."""

from __future__ import annotations

from .log import RaftLog
from .messages import Message, MessageKind


def vote_request(kind: MessageKind, to: int, node: int, term: int, log: RaftLog, force: bool) -> Message:
    """Ask *to* for its vote, or (pre_vote) whether it would give one, for the log of *node*."""
    return Message(
        kind,
        to,
        node,
        term,
        index=log.last_index,
        log_term=log.last_term,
        commit=log.commit,
        hint=log.term(log.commit),
        force=force,
    )


def vote_reply(request: Message, term: int, log: RaftLog, granted: bool) -> Message:
    """The answer of whom *request* asked."""
    return Message(
        "vote_reply" if request.kind == "vote" else "pre_vote_reply",
        request.sender,
        request.to,
        term,
        commit=log.commit,
        hint=log.term(log.commit),
        reject=not granted,
    )
