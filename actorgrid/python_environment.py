"""A Python environment that work asks for: which Python, which packages; named by its content, built once a host.

Whoever asks for one (clients, the command line), takes it (doors) and builds it (the work's own process, on its host)
reads and writes it here. What it says is not looked into by the agent.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import NamedTuple

from actorgrid.errors import BadRequest, MalformedBody

VARIABLE = "ACTORGRID_ENVIRONMENT"
"""In the environment of work: the folder of the virtual environment. In that of a lease: the digest of its spec."""
REQUIREMENTS_BYTES_MAX = 2 * 2**20
"""A lock with hashes of all its wheels has some 300 bytes a wheel."""
PATH_CHARS_MAX = 1024
PYTHON_OLDEST = (3, 11)
"""Work's own end of the protocol is part of this program, which runs on no older Python."""
_VERSION = re.compile(r"3\.\d{1,3}(?:\.\d{1,3})?")


class PythonEnvironment(NamedTuple):
    """What a Python environment is made of."""

    python: str
    """A version (``3.12``, ``3.12.4``), the absolute path of an interpreter on the host, or empty: the host's own."""
    requirements: str
    """The text of a requirements file, with what it includes in its place. Empty: no packages."""

    def to_bytes(self) -> bytes:
        """As it is sent and kept: the same for the same content."""
        fields = {"v": 1, "python": self.python, "requirements": self.requirements}
        return json.dumps(fields, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()

    @property
    def digest(self) -> str:
        """The SHA-256 of it, in hexadecimal digits."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @property
    def is_path(self) -> bool:
        """Whether it names an interpreter by its path."""
        return self.python.startswith("/")

    @property
    def to_be_built(self) -> bool:
        """Whether a virtual environment is made of it: an interpreter that is named alone is taken as it is."""
        return bool(self.requirements.strip()) or not self.is_path


def python_environment(python: str = "", requirements: str = "") -> PythonEnvironment:
    """An environment, checked. Raises BadRequest."""
    if python and not python.startswith("/"):
        if not _VERSION.fullmatch(python):
            raise BadRequest(
                "no version of Python and no absolute path of one",
                asked=f"python={python[:80]!r}",
                hint="write python='3.12', or the path of an interpreter that is on the hosts",
            )
        version = tuple(map(int, python.split(".")[:2]))
        if version < PYTHON_OLDEST:
            raise BadRequest(
                "work cannot run in so old a Python",
                asked=f"python={python!r}",
                hint=f"{'.'.join(map(str, PYTHON_OLDEST))} is the oldest; older ones start as commands: "
                "client.run(['/path/of/python', ...])",
            )
    if len(python) > PATH_CHARS_MAX or "\0" in python:
        raise BadRequest("the path of a Python is too long or holds NUL", asked=f"{python[:80]!r}")
    size = len(requirements.encode("utf-8", "surrogatepass"))
    if size > REQUIREMENTS_BYTES_MAX or "\0" in requirements:
        raise BadRequest(
            "the requirements are too long or hold NUL",
            asked=f"{size} bytes",
            found=f"at most {REQUIREMENTS_BYTES_MAX}",
            hint="leave hashes out, or name fewer packages",
        )
    return PythonEnvironment(python, requirements)


def environment_of_bytes(data: bytes) -> PythonEnvironment:
    """The environment that :meth:`PythonEnvironment.to_bytes` gave. Raises MalformedBody for anything else."""
    try:
        fields = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise MalformedBody(f"not a Python environment: {type(error).__name__}") from None
    match fields:
        case {"v": 1, "python": str(python), "requirements": str(requirements)}:
            try:
                return python_environment(python, requirements)
            except BadRequest as error:
                raise MalformedBody(error.message, asked=error.asked) from None
    raise MalformedBody("not a Python environment", found=type(fields).__name__)
