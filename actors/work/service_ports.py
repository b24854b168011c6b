"""What only the host of a service's replica knows: its port, which Python it is, of a gang its rank and where the
others meet it; told to its command.

The port lies outside of what the system gives to who asks for any port (32768 to 60999 on Linux), so that nobody is
given it by chance between now and when the replica listens there; it is drawn, so that two replicas of one host hardly
ever want the same, and nobody can tell beforehand which it will be. One that finds its port taken all the same ends,
and its next attempt has another (port_owner.py: what keeps a stranger from answering for it).
"""

from __future__ import annotations

import secrets
import socket
import sys
from collections.abc import Mapping

from actorgrid.errors import Overloaded

from .work_records import WorkSpec

FIRST, COUNT = 20_000, 10_000
TRIES = 64
PLACE = "{port}"
VARIABLE = "PORT"
PYTHON = "{python}"
RANK_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
LOOPBACK = "127.0.0.1"


def give_port(spec: WorkSpec) -> None:
    """Put a free port into the command, wherever it says ``{port}``, and into PORT. Raises Overloaded."""
    port = str(free_port())
    spec["command"] = [word.replace(PLACE, port) for word in spec["command"]]
    spec["env"][VARIABLE] = port


def give_python(spec: WorkSpec) -> None:
    """Put a Python that can import actorgrid where the command says ``{python}``: the agent's own, or that of the
    environment or the container that the work asked for."""
    python = "python" if spec.get("environment") else "python3" if spec.get("container") else sys.executable
    spec["command"] = [python if word == PYTHON else word for word in spec["command"]]


def give_rank(spec: WorkSpec, ranks: Mapping[str, str]) -> None:
    """Put what a member of a gang finds in its environment (gang_environment.py) into the command, wherever that says
    ``{rank}``, ``{world_size}``, ``{master_addr}`` or ``{master_port}``."""
    told = {"{" + name.lower() + "}": ranks[name] for name in RANK_VARIABLES}
    for place, value in told.items():
        spec["command"] = [word.replace(place, value) for word in spec["command"]]


def port_of(spec: WorkSpec | None) -> int:
    """The port that an attempt was given; 0: none."""
    given = "" if spec is None else spec["env"].get(VARIABLE, "")
    return int(given) if given.isascii() and given.isdecimal() and len(given) <= 5 else 0


def free_port() -> int:
    """A port on which nobody listens here now. Raises Overloaded where 64 in a row are taken."""
    first = secrets.randbelow(COUNT)
    for more in range(TRIES):
        port = FIRST + (first + more) % COUNT
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tried:
            # Without it a port counts as taken for a minute after the last connection to it.
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind((LOOPBACK, port))
            except OSError:
                continue
            return port
    raise Overloaded(
        "this host has no free port for a replica of a service",
        asked=f"one of {FIRST} to {FIRST + COUNT - 1}",
        found=f"{TRIES} in a row are taken",
        hint="see what listens there: ss -ltn",
    )
