"""How far a job's output was read, so that a reader goes on where a connection broke."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class OutputCursor:
    """How far one stream was read. *choice*: the part of it that is asked for (``since_s``, ``tail``, ``grep``).

    With a pattern what comes is no part of the file that could be counted on: from the same beginning it is the same
    again, and what came before the break is left out.
    """

    choice: Mapping[str, Any] = field(default_factory=dict)
    begin: int | None = None
    delivered: int = 0

    def query(self) -> dict[str, Any]:
        """What to ask for now."""
        if self.begin is None:
            return {name: value for name, value in self.choice.items() if value is not None} or {"offset": 0}
        if self.choice.get("grep"):
            return {"grep": self.choice["grep"], "offset": self.begin}
        return {"offset": self.begin + self.delivered}

    def answered(self, offset: str | None) -> int:
        """Take the answer's X-Offset; gives how many bytes of the answer had come before."""
        if self.begin is None:
            self.begin = int(offset or 0)
            return 0
        return self.delivered if self.choice.get("grep") else 0

    def next_attempt(self) -> None:
        """Go on with another attempt's output, from its beginning."""
        self.begin, self.delivered = 0, 0
