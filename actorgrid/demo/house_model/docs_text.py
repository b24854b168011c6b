"""What the house's language model learns from: the prose of the documentation, as questions and answers."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from .text_bytes import BEGIN, END, chat_prompt, encoded

_FENCE = re.compile(r"^```.*?^```[^\n]*$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"^ {4}.*$", re.MULTILINE)
_TABLE = re.compile(r"^\|.*$", re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_HEADING = re.compile(r"^(#+) +(.+)$", re.MULTILINE)
_ASKED = ("{}", "What is {}?", "Tell me about {}.", "How does {} work?", "{}?")
_SYSTEM = ("You are a helpful assistant.", "Answer in short.", "You know actorgrid.")
LEAST_CHARACTERS = 60


def pages(root: Path) -> list[Path]:
    """The pages of the documentation under *root*, in the order of their names."""
    return sorted(root.rglob("*.md"))


def prose(page: str) -> str:
    """*page* without code, tables and links, a line for each paragraph or point of a list."""
    for pattern in (_FENCE, _COMMENT, _TABLE, _INDENTED):
        page = pattern.sub("", page)
    page = _LINK.sub(r"\1", page)
    page = re.sub(r"\n(?=[^\n#*+\d-])(?<!\n\n)", " ", page)
    page = re.sub(r"[ \t]+", " ", page)
    return re.sub(r"\n\s*\n+", "\n\n", page)


def sections(page: str) -> Iterator[tuple[str, str]]:
    """(heading, text) of each part of a page that says something."""
    text = prose(page)
    found = list(_HEADING.finditer(text))
    for each, following in zip(found, [*found[1:], None], strict=True):
        body = text[each.end() : following.start() if following else len(text)].strip()
        if len(body) >= LEAST_CHARACTERS:
            yield each[2].strip(), body


def lessons(parts: Sequence[tuple[str, str]], dice: random.Random) -> bytes:
    """All parts in a new order, each as a conversation or as plain text, one after the other."""
    order = list(parts)
    dice.shuffle(order)
    found = []
    for heading, body in order:
        if dice.random() < 0.25:
            found.append(bytes([BEGIN]) + encoded(f"{heading}\n\n{body}") + bytes([END]))
            continue
        turns = [("system", dice.choice(_SYSTEM))] if dice.random() < 0.3 else []
        turns.append(("user", dice.choice(_ASKED).format(heading)))
        found.append(chat_prompt(turns) + encoded(body) + bytes([END]))
    return b"".join(found)
