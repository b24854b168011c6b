"""The outputs that an attempt left, a page and a piece at a time: read on their host, told to others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from actorgrid.errors import MalformedMessage

from ..work.attempt_dir import AttemptDir
from ..work.collected_outputs import OutputEntry, listing, read_output
from .pieces import PIECE_BYTES_MAX, Fields, Piece, is_count


@dataclass(frozen=True, slots=True)
class OutputsPage:
    """Some of the files, in the order of their paths."""

    exists: bool
    """Whether anything of the attempt is there."""
    kept: bool
    """Whether outputs of it are."""
    entries: list[OutputEntry]
    behind: str
    """The path behind which it goes on; empty: that is all."""
    missing: list[str]
    """What was named and not there."""
    problem: str
    """Why not all is there that was; empty: it is."""

    def to_plain(self) -> Fields:
        """The page as plain values, for the wire."""
        plain: Fields = {"exists": self.exists, "kept": self.kept, "behind": self.behind, "problem": self.problem}
        return {**plain, "missing": self.missing, "entries": [list(each) for each in self.entries]}

    @classmethod
    def of_plain(cls, fields: Any) -> OutputsPage:
        """The page in plain values from the wire. Raises MalformedMessage."""
        match fields:
            case {
                "exists": bool(exists),
                "kept": bool(kept),
                "behind": str(behind),
                "problem": str(problem),
                "missing": list(missing),
                "entries": list(entries),
            } if all(isinstance(each, str) for each in missing):
                return cls(exists, kept, [_entry(each) for each in entries], behind, missing, problem)
        raise MalformedMessage("not a page of outputs", found=str(fields)[:100])


def _entry(plain: Any) -> OutputEntry:
    match plain:
        case [str(path), int(size), float(modified_at), bool(executable)] if is_count(size):
            return OutputEntry(path, size, modified_at, executable)
    raise MalformedMessage("not a file of a page of outputs", found=str(plain)[:100])


def outputs_page(folder: AttemptDir, behind: str) -> OutputsPage:
    """The page of an attempt of this host that begins *behind* that path."""
    status = folder.read_status()
    told = None if status is None else status.get("outputs")
    missing, problem = ([], "") if told is None else (told["missing"], told["problem"])
    kept = folder.outputs.is_dir()
    entries, rest = listing(folder.outputs, behind) if kept else ([], "")
    return OutputsPage(folder.path.exists(), kept, entries, rest, missing, problem)


def read_output_piece(folder: AttemptDir, path: str, offset: int, size: int) -> Piece | None:
    """A piece of one of them; ``None`` when there is none of that path."""
    found = read_output(folder.outputs, path, offset, min(size, PIECE_BYTES_MAX))
    return None if found is None else Piece(*found)
