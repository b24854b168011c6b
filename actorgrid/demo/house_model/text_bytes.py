"""The alphabet of the house's language model: bytes of UTF-8, and five that UTF-8 never has, for what is no text."""

from __future__ import annotations

from collections.abc import Iterable

BEGIN, SYSTEM, USER, ASSISTANT, END = 0xFF, 0xFC, 0xFE, 0xFD, 0xFB
"""The beginning of a text, whose turn it is, and its end. No text that arrives can hold them: they are no UTF-8."""
ROLES = {"system": SYSTEM, "developer": SYSTEM, "user": USER, "assistant": ASSISTANT}


def encoded(text: str) -> bytes:
    """*text* as the network reads it. Halves of surrogate pairs, which are no characters, become question marks."""
    return text.encode("utf-8", "replace")


def chat_prompt(turns: Iterable[tuple[str, str]]) -> bytes:
    """The prompt of a conversation of (role, text), up to where the assistant speaks. A role is one of ROLES."""
    parts = [bytes([BEGIN])]
    for role, text in turns:
        parts.append(bytes([ROLES[role]]) + encoded(text))
        if role == "assistant":
            parts.append(bytes([END]))
    return b"".join([*parts, bytes([ASSISTANT])])


class Utf8Progress:
    """Which bytes may follow, so that what is written stays UTF-8, and the text that is whole so far.

    As the table of well-formed sequences says (Unicode 15, table 3-7): no byte is given out before its character is
    whole, and none that could not become one is allowed.
    """

    __slots__ = ("_held", "_least", "_most", "_wanted")

    def __init__(self) -> None:
        self._held = bytearray()
        self._wanted = 0
        self._least, self._most = 0x80, 0xBF

    @property
    def inside(self) -> bool:
        """Whether a character is begun and not whole."""
        return self._wanted > 0

    def allows(self, byte: int) -> bool:
        """Whether *byte* may come next."""
        if self._wanted:
            return self._least <= byte <= self._most
        return byte < 0x80 or 0xC2 <= byte <= 0xF4

    def take(self, byte: int) -> str:
        """The text that is whole with this byte: a character, or nothing yet. The byte has to be an allowed one."""
        self._held.append(byte)
        if self._wanted:
            self._wanted -= 1
            self._least, self._most = 0x80, 0xBF
        elif byte >= 0xC2:
            self._wanted = 1 if byte < 0xE0 else 2 if byte < 0xF0 else 3
            self._least = {0xE0: 0xA0, 0xF0: 0x90}.get(byte, 0x80)
            self._most = {0xED: 0x9F, 0xF4: 0x8F}.get(byte, 0xBF)
        if self._wanted:
            return ""
        whole = bytes(self._held).decode("utf-8")
        self._held.clear()
        return whole
