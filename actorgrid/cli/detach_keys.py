"""The keys by which a person leaves a job's terminal without ending anything: a sequence among what is typed."""

from __future__ import annotations

from actorgrid.errors import BadRequest

DEFAULT_KEYS = "ctrl-],d"
_CONTROL = {**{chr(ord("a") + at): at + 1 for at in range(26)}, "@": 0, "[": 27, "\\": 28, "]": 29, "^": 30, "_": 31}


class DetachKeys:
    """Finds the sequence in what is typed. A beginning of it is held back until it is clear that it is none."""

    def __init__(self, text: str = DEFAULT_KEYS) -> None:
        """*text*: keys separated by commas, each a character or ``ctrl-X``. Raises BadRequest."""
        self.text = text
        self._keys = bytes(_key(part, text) for part in text.split(","))
        self._held = b""

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        """What of this, and of what was held back, is typed for the job; and whether the sequence is complete."""
        typed = bytearray()
        for value in data:
            self._held += bytes([value])
            while self._held and not self._keys.startswith(self._held):
                typed.append(self._held[0])
                self._held = self._held[1:]
            if self._held == self._keys:
                self._held = b""
                return bytes(typed), True
        return bytes(typed), False


def _key(part: str, text: str) -> int:
    name = part.strip().lower()
    if name.startswith("ctrl-") and name[5:] in _CONTROL:
        return _CONTROL[name[5:]]
    if len(part) == 1 and part.isascii():
        return ord(part)
    raise BadRequest(
        "that is no sequence of keys",
        asked=text[:80],
        found=repr(part),
        hint="keys separated by commas, each a character or ctrl-X: ctrl-],d or ctrl-p,ctrl-q",
    )
