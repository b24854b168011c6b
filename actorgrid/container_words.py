"""How the container of a command is asked for: its image, what is mounted into it, and by which runtime it is run."""

from __future__ import annotations

import re
from typing import Any, NotRequired, TypedDict

RUNTIMES = ("apptainer", "podman", "docker")
"""In the order in which they are looked for: those that need no root come first."""
MOUNTS_MAX = 32
IMAGE_CHARS_MAX = 512
PATH_CHARS_MAX = 1024
_IMAGE = re.compile(r"[A-Za-z0-9/.~][^\s\0]*")


class Mount(TypedDict):
    """A path of the host that the container sees."""

    source: str
    """Absolute, on the host."""
    target: str
    """Absolute, in the container."""
    read_only: bool


class ContainerWish(TypedDict):
    """The container that a command is to run in."""

    image: str
    """As the runtime takes it: a name with its tag, the path of a ``.sif``, ``docker://...``."""
    runtime: NotRequired[str]
    """One of ``RUNTIMES``; without it, the first that the host has."""
    mounts: NotRequired[list[Mount]]


def mount_of(text: str) -> Mount | None:
    """The mount that ``SOURCE[:TARGET][:ro|:rw]`` means, as docker writes it; ``None`` where it means none."""
    source, *rest = text.split(":")
    mode = rest.pop() if rest and rest[-1] in ("ro", "rw") else "rw"
    target = rest.pop() if rest else source
    if rest or not is_path(source) or not is_path(target):
        return None
    return {"source": source, "target": target, "read_only": mode == "ro"}


def is_path(value: object) -> bool:
    """Whether *value* is an absolute path that can be named in a mount."""
    right = isinstance(value, str) and value.startswith("/") and len(value) <= PATH_CHARS_MAX
    return right and not any(part in str(value) for part in ("\0", ":", ",", "\n"))


def is_image(value: object) -> bool:
    """Whether *value* can be the name of an image, and no option of a runtime."""
    return isinstance(value, str) and len(value) <= IMAGE_CHARS_MAX and _IMAGE.fullmatch(value) is not None


def is_container(value: Any) -> bool:
    """Whether *value* is a ContainerWish."""
    match value:
        case {"image": image, **rest} if is_image(image) and set(rest) <= {"runtime", "mounts"}:
            mounts = rest.get("mounts", [])
            return (
                rest.get("runtime", RUNTIMES[0]) in RUNTIMES
                and isinstance(mounts, list)
                and len(mounts) <= MOUNTS_MAX
                and all(map(_is_mount, mounts))
            )
    return False


def _is_mount(value: Any) -> bool:
    match value:
        case {"source": source, "target": target, "read_only": bool(), **rest} if not rest:
            return is_path(source) and is_path(target)
    return False
