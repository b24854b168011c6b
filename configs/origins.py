"""Where a value comes from, and what one layer of configuration says."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Kind = Literal["default", "file", "dotenv", "environment", "flag", "remembered", "live"]


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a value: where it was written. ``line`` counts from 1; ``name`` is the variable or flag."""

    kind: Kind
    file: Path | None = None
    line: int | None = None
    name: str = ""

    def __str__(self) -> str:
        if self.file is not None:
            where = f"{self.file.name}:{self.line}" if self.line else self.file.name
            return f"{where} {self.name}".rstrip()
        return self.name or self.kind

    @property
    def place(self) -> str:
        """The origin with the whole path of the file, for an error message."""
        if self.file is not None:
            return f"{self.file}, line {self.line}" if self.line else str(self.file)
        return self.name or self.kind


DEFAULT = Origin("default")


@dataclass(slots=True)
class Layer:
    """The values of one source by dotted key, and where each was written.

    ``inner`` names lines inside a list (``gpus.declared.0.model``), for messages about it.
    """

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)
    inner: dict[str, Origin] = field(default_factory=dict)

    def put(self, key: str, value: Any, origin: Origin) -> None:
        """Add one value; an earlier one of the same key is replaced."""
        self.values[key] = value
        self.origins[key] = origin

    def tree(self) -> dict[str, Any]:
        """The values, nested by section."""
        root: dict[str, Any] = {}
        for key, value in self.values.items():
            *path, name = key.split(".")
            place = root
            for part in path:
                place = place.setdefault(part, {})
            place[name] = value
        return root
