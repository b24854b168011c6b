"""Paths of what a job leaves as its outputs: relative, inside of its directory, and how many there may be."""

from __future__ import annotations

OUTPUTS_MAX = 64
"""Of one job: files and folders that are collected at its end."""
OUTPUT_FILES_MAX = 100_000
"""In all of them together."""
OUTPUT_PATH_BYTES_MAX = 1024


def inside(path: str) -> str | None:
    """The relative *path* written plainly: ``results`` for ``./results/``. ``None`` if it leads out."""
    if path.startswith(("/", "~")) or "\0" in path:
        return None
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts or ".." in parts:
        return None
    plain = "/".join(parts)
    return plain if len(plain.encode("utf-8", "surrogatepass")) <= OUTPUT_PATH_BYTES_MAX else None


def checked(path: str) -> str:
    """The path of an output, written plainly. Raises ValueError."""
    plain = inside(path)
    if plain is None:
        raise ValueError(f"{path!r} is no path inside of the job's directory; write for example results/")
    return plain


def is_outputs(value: object) -> bool:
    """Whether *value* is a list of such paths, each written plainly."""
    return (
        isinstance(value, list)
        and len(value) <= OUTPUTS_MAX
        and all(isinstance(each, str) and inside(each) == each for each in value)
    )
