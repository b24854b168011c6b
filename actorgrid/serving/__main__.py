"""``python -m actorgrid.serving package.module:Class --port 8000``: serve a class until it is told to end."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys

import uvloop

from actorgrid.errors import ActorGridError, PortInUse

from .endpoints import find_class
from .http_door import ServiceDoor
from .replica import ServiceReplica

LOG = logging.getLogger("actorgrid.serving")
PORT_MAX = 65_535


def main() -> None:
    """Parse, serve, and end with 0, or with the exit code of what went wrong."""
    parser = argparse.ArgumentParser(prog="python -m actorgrid.serving", description=__doc__)
    parser.add_argument("target", metavar="MODULE:CLASS")
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (127.0.0.1)")
    parser.add_argument("--port", type=_port, default=8000, help="at which port; 0: a free one (8000)")
    parser.add_argument(
        "--model", action="append", default=[], help="a name of the model under /v1, instead of its own"
    )
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            sys.exit(runner.run(serve(given.target, given.host, given.port, given.model)))
    except ActorGridError as error:
        LOG.error("%s", error)
        sys.exit(error.exit_code)


def _port(text: str) -> int:
    """A port, or 0. Raises ArgumentTypeError: the loop would take a larger number for another port."""
    if not (text.isascii() and text.isdecimal() and int(text) <= PORT_MAX):
        raise argparse.ArgumentTypeError(f"{text!r} is no port from 0 to {PORT_MAX}")
    return int(text)


async def serve(target: str, host: str, port: int, models: list[str]) -> int:
    """Serve until SIGTERM or SIGINT. 0: all was finished; 1: the class could not be made, or requests were cut."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    replica = ServiceReplica(find_class(target))
    door = ServiceDoor(replica, models)
    try:
        opened = await door.open(host, port)
    except OSError as error:
        raise PortInUse(f"cannot listen: {error.strerror or error}", asked=f"{host}:{port}") from error
    try:
        return await _serve(replica, target, f"http://{host}:{opened}", ended)
    finally:
        await door.close()


async def _serve(replica: ServiceReplica, target: str, url: str, ended: asyncio.Event) -> int:
    LOG.info("%s: loading, at %s", target, url)
    loading = asyncio.create_task(replica.load())
    waiting = asyncio.create_task(ended.wait())
    await asyncio.wait({loading, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if not loading.done():
        loading.cancel()
        LOG.info("told to end while it was loading")
        return 0
    if (error := loading.exception()) is not None:
        waiting.cancel()
        LOG.error("making a %s raised", replica.cls.__qualname__, exc_info=error)
        return 1
    LOG.info("%s: serving at %s", target, url)
    await waiting
    LOG.info("told to end: %d requests in hand", replica.in_flight)
    if await replica.end():
        return 0
    LOG.error("ended with %d requests unfinished after %.0f s", replica.in_flight, replica.options.drain_s)
    return 1


if __name__ == "__main__":
    main()
