"""Read the settings in a child process that ends at once.

The libraries that read them (YAML, pydantic-settings, dotenv) take some 5 MB that every process forked later would
carry, and none needs.
"""

from __future__ import annotations

import os
import pickle  # nosec B403 - between this process and its own child
from typing import Any

from actorgrid.errors import ActorGridError, StartFailed

from .schema import Settings


def settings_read_apart(*arguments: Any, **options: Any) -> Settings:
    """As ``load_settings(...).settings``; the origins travel with them. Call it before other threads exist.

    Raises what load_settings raises, or StartFailed when the child dies.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _read_in_child(writer, arguments, options)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        answer = file.read()
    _, status = os.waitpid(pid, 0)
    if not answer:
        raise StartFailed(
            "the settings could not be read",
            found=f"the process that reads them ended with status {os.waitstatus_to_exitcode(status)}",
            hint="actorgrid doctor reads them too and shows more",
        )
    found = pickle.loads(answer)  # nosec B301 - written by our own child
    if isinstance(found, ActorGridError):
        raise found
    settings: Settings = found
    return settings


def _read_in_child(writer: int, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    status = 1
    try:
        from .load import load_settings

        try:
            found: Settings | ActorGridError = load_settings(*arguments, **options).settings
        except ActorGridError as error:
            found = error
        with os.fdopen(writer, "wb") as file:
            file.write(pickle.dumps(found))
        status = 0
    finally:
        os._exit(status)  # the parent's exit handlers and buffers are not ours
