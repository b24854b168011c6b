"""Whom a job tells of its states, and of which: the words that people say it with, for clients, doors and ledger."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

TARGETS_MAX = 4
TARGET_CHARS_MAX = 2_000
EVENTS = ("started", "requeued", "succeeded", "failed", "cancelled", "lost")
"""What can be told of a job: that an attempt of it runs, that it waits again after one, and how it ended."""
ENDS = ("succeeded", "failed", "cancelled", "lost")
"""What is told where nothing else is said."""
WEBHOOK, MAIL, DESKTOP = "webhook", "mail", "desktop"
TARGETS_TEXT = f"whom it tells of its states, {TARGETS_MAX} at most: webhook:URL, mail:ADDRESS, or a target's name"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
_ADDRESS = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9.!#$&'*+/=?^_`{|}~-]{0,63}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?"
)
"""A mail address that no command takes for an option; quoted local parts and addresses of numbers are left out."""
_SHAPES = "write webhook:https://HOST/PATH, mail:NAME@HOST, or the name of a target that the cluster has"


def is_targets(value: Any) -> bool:
    """As the ledger keeps them."""
    return (
        isinstance(value, list)
        and 0 < len(value) <= TARGETS_MAX
        and all(isinstance(each, str) and 0 < len(each) <= TARGET_CHARS_MAX for each in value)
    )


def is_events(value: Any) -> bool:
    """As the ledger keeps them."""
    return isinstance(value, list) and 0 < len(value) <= len(EVENTS) and all(each in EVENTS for each in value)


def is_name(target: str) -> bool:
    """Whether it is the name of a target, which the operator has named."""
    return target != DESKTOP and _NAME.fullmatch(target) is not None


def target_fault(target: str) -> str:
    """What is wrong with a target as somebody wrote it, and what to write; empty: nothing."""
    kind, colon, rest = target.partition(":")
    if len(target) > TARGET_CHARS_MAX:
        return f"a target of {len(target)} characters is too long: it may have {TARGET_CHARS_MAX}"
    if target == DESKTOP:
        return (
            "a desktop is told by the command that waits: actorgrid run --notify desktop, or wait JOB --notify-desktop"
        )
    if not colon:
        return "" if _NAME.fullmatch(target) else f"{target[:80]!r} is no target; {_SHAPES}"
    if kind == MAIL:
        return "" if _ADDRESS.fullmatch(rest) else f"{rest[:80]!r} is no mail address; {_SHAPES}"
    if kind != WEBHOOK:
        near = f"did you mean webhook:{target[:60]}? " if kind in ("http", "https") else ""
        return f"{kind[:40]!r} is no kind of target: {near}{_SHAPES}"
    return url_fault(rest)


def url_fault(url: str) -> str:
    """What is wrong with the address of a webhook; empty: nothing."""
    if not url.isascii() or any(char.isspace() or not char.isprintable() for char in url) or "\\" in url:
        return "the address of a webhook has spaces, or characters that are not ASCII: write them as %XX"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return f"that is no address of a webhook: {error}"
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        return f"{url[:80]!r} is no address of a webhook: https://HOST/PATH"
    if parts.username is not None or parts.password is not None:
        return "a webhook's address holds a password, which all who may read the job would read: use a named target"
    return ""


def checked_targets(targets: list[str]) -> list[str]:
    """The targets, each once. Raises ValueError, which says what is wrong."""
    for target in targets:
        fault = target_fault(target)
        if fault:
            raise ValueError(fault)
    return list(dict.fromkeys(targets))


def events_of(words: Iterable[str]) -> list[str]:
    """Events as people name them, ``failed,lost`` too; ``ended`` is all ends. Raises ValueError."""
    found: dict[str, None] = {}
    for word in (part.strip().lower() for text in words for part in text.split(",")):
        if word == "ended":
            found.update(dict.fromkeys(ENDS))
        elif word in EVENTS:
            found[word] = None
        elif word:
            raise ValueError(f"{word[:40]!r} is nothing a job tells of: {', '.join(EVENTS)}, or ended for all ends")
    return list(found)


def shown_target(target: str) -> str:
    """A target for lists and logs: of a webhook its host alone, as the rest of an address may be a secret."""
    kind, _, rest = target.partition(":")
    if kind != WEBHOOK:
        return target
    try:
        parts = urlsplit(rest)
        port = parts.port
    except ValueError:  # no door takes such a one
        return f"{WEBHOOK}:?"
    return f"{WEBHOOK}:{parts.scheme}://{parts.hostname}" + (f":{port}" if port else "")
