"""Looks a host's name up, for at most so long: the system's own lookup knows no limit (a name server that drops
questions holds it for half a minute and more) and cannot be called off.

So each runs in a thread of its own, which is left behind when its time is up. ``LEFT_MAX`` may be left behind at once;
beyond that none is begun, and what would have asked is tried again later.
"""

from __future__ import annotations

import socket
import threading
from typing import Any

LEFT_MAX = 16
_running = threading.BoundedSemaphore(LEFT_MAX)

Found = list[tuple[Any, ...]]


def look_up(host: str, port: int, timeout_s: float) -> Found:
    """What ``socket.getaddrinfo`` gives for TCP. Raises OSError, UnicodeError as that does; TimeoutError."""
    running = _running
    if not running.acquire(blocking=False):
        raise TimeoutError(f"{LEFT_MAX} lookups of names hang")
    answer: list[Found | OSError | UnicodeError] = []

    def ask() -> None:
        try:
            answer.append(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            answer.append(error)
        finally:
            running.release()

    thread = threading.Thread(target=ask, name="lookup", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no thread can be had
        running.release()
        raise OSError("no thread for it can be begun") from None
    thread.join(timeout_s)
    if not answer:
        raise TimeoutError(f"no name server answered in {timeout_s:g} s")
    (found,) = answer
    if isinstance(found, OSError | UnicodeError):
        raise found
    return found
