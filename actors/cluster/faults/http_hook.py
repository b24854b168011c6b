"""Sends one POST, for the strategy ``http``: run as a process, so that a server that hangs keeps nobody else waiting.

``python -m actorgrid.actors.cluster.faults.http_hook URL TIMEOUT_S [TOKEN_FILE]``, with the body on standard input.
Exit status 0: it was answered with 2xx.
"""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from pathlib import Path

ANSWER_KEPT = 500


HANDLERS = (
    urllib.request.ProxyHandler,
    urllib.request.HTTPHandler,
    urllib.request.HTTPSHandler,
    urllib.request.HTTPErrorProcessor,
    urllib.request.HTTPDefaultErrorHandler,
)
"""No redirects: one would take the token to wherever the answer says, and a POST would become a GET."""


def main(arguments: list[str]) -> int:
    """Send it; what was answered goes to standard output."""
    url, timeout_s = arguments[0], float(arguments[1])
    if not url.startswith(("https://", "http://")):
        print("the URL is of neither https nor http")
        return 2
    headers = {"Content-Type": "application/json"}
    if len(arguments) > 2:
        headers["Authorization"] = f"Bearer {Path(arguments[2]).read_text(encoding='ascii').strip()}"
    request = urllib.request.Request(url, sys.stdin.buffer.read(4096), headers, method="POST")
    opener = urllib.request.OpenerDirector()
    for handler in HANDLERS:
        opener.add_handler(handler())
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            print(answer.status, answer.read(ANSWER_KEPT).decode("utf-8", "replace"))
    except (urllib.error.URLError, OSError) as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
