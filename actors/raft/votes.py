"""The requests and replies of an election. Both sides tell what they know to be committed (``_learn_commit``)."""

from __future__ import annotations

from .log import RaftLog
from .messages import Message, MessageKind


def vote_request(
    kind: MessageKind, to: int, node: int, term: int, log: RaftLog, force: bool = False, asked: int = 0
) -> Message:
    """Ask *to* for its vote, or (pre_vote) whether it would give one, for *node*, and whether *asked* votes."""
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
        sequence=asked,
    )


def vote_reply(request: Message, term: int, log: RaftLog, granted: bool, vouched: int = 0) -> Message:
    """The answer to *request*; *vouched* is the node that it asked about, if that votes."""
    return Message(
        "vote_reply" if request.kind == "vote" else "pre_vote_reply",
        request.sender,
        request.to,
        term,
        index=vouched,
        commit=log.commit,
        hint=log.term(log.commit),
        reject=not granted,
    )
