"""How a process of users' work goes on in another Python: that of the environment which the work asked for.

Workers are forked with the agent's Python in them. One whose work asks for another executes that one in its own
place: its pid, its parent, its containment, its descriptors and its marks stay. What it has to know goes along in
memory (a memfd), not in its arguments, which everybody on the machine can read.

Of the agent's distributions the new one finds those that it needs to speak with its shim and its client, and no
others (``_own_folder``): what else there is, the environment says.
"""

from __future__ import annotations

import hashlib
import os
import socket
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import msgpack

from actorgrid.actors.files.untrusted_files import write_all
from actorgrid.errors import EnvironmentFailed

from .built_environments import BuiltEnvironment
from .environment import PYTHON
from .guard import SharedDeadline
from .linux import MARK_ATTEMPT, MARK_HOST, boot_seconds, mark, mark_placeholder
from .work_records import WorkSpec

OWN = ("actorgrid", "cloudpickle", "msgpack", "setproctitle")
"""What a worker imports that no standard library has."""
COMPILED = ("setproctitle",)
"""Of these, what is nothing without its compiled part; the others have the same in Python."""
STUB = (
    '"""Does nothing: the real one is compiled for another Python."""\n\n\ndef setproctitle(_title):\n    return None\n'
)
_ROOM_FOR_TITLE = "." * 160
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); from actorgrid.actors.work.python_switch import main; "
    "main(int(sys.argv[2]))"
)


def go_on_in(
    environment: BuiltEnvironment, folder: Path, spec: WorkSpec, state: dict[str, Any], fds: dict[str, int]
) -> NoReturn:
    """Execute *environment*'s Python in place of this one, to be what *spec* says; there ``main`` takes it up.

    *fds*: the descriptors that it needs, by name. Raises EnvironmentFailed where that Python cannot be executed.
    """
    version = ".".join(environment.version.split(".")[:2])
    own = own_folder(folder, version)
    told = os.memfd_create("switch", 0)
    plain = msgpack.packb({"spec": spec, "state": state, "fds": fds}, use_bin_type=True)
    write_all(told, plain)
    os.lseek(told, 0, os.SEEK_SET)
    for fd in fds.values():
        os.set_inheritable(fd, True)
    command = [environment.python, "-I", "-c", _BOOT, str(own), str(told), _ROOM_FOR_TITLE]
    # Its marks stay as they are; those of a worker that serves attempts change, and need their room.
    marks = {MARK_ATTEMPT: mark_placeholder()} if spec["kind"] == "functions" else {}
    try:
        os.execve(environment.python, command, {"SPT_NOENV": "1", **spec["env"], **marks})  # nosec B606 - the user's own
    except OSError as error:
        raise EnvironmentFailed(
            f"the Python of the environment does not start: {error.strerror}",
            asked=environment.python,
            hint="it may be of another architecture, or what it links to was removed",
        ) from error


def own_folder(folder: Path, version: str) -> Path:
    """A folder with what a worker needs of the agent's distributions, for a Python of that *version*, made if need be.

    A stub stands for what is compiled for another version only.
    """
    links: dict[str, str] = {}
    for name in OWN:
        found = find_spec(name)
        if found is not None and found.origin is not None and (version == PYTHON or name not in COMPILED):
            links[name] = os.path.dirname(os.path.realpath(found.origin))
    text = repr(sorted(links.items()))
    place = folder / f".own-{version}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    if place.is_dir():
        return place
    draft = folder / f"{place.name}.{os.getpid()}"
    draft.mkdir(mode=0o700, parents=True)
    for name, target in links.items():
        (draft / name).symlink_to(target)
    for name in COMPILED:
        if name not in links:
            (draft / f"{name}.py").write_text(STUB, encoding="utf-8")
    try:
        draft.rename(place)
    except OSError:  # another process was faster
        for path in draft.iterdir():
            path.unlink()
        draft.rmdir()
    return place


def main(told: int) -> NoReturn:
    """Be the worker that the process was before it was this Python. Called by ``_BOOT`` alone."""
    with open(told, "rb") as file:
        received = msgpack.unpackb(file.read(), raw=False)
    spec, state, fds = received["spec"], received["state"], received["fds"]
    for fd in fds.values():
        os.set_inheritable(fd, False)
    from setproctitle import setproctitle

    from . import task_multiprocessing
    from .worker_process import WorkerDeadline, switched_body

    setproctitle(spec["title"])
    mark(str(spec["env"].get(MARK_HOST, "")), spec["id"])
    task_multiprocessing.install()
    deadline = WorkerDeadline(lambda: False, -1)
    if "deadline" in fds:
        shared = SharedDeadline(fds["deadline"], keep=True)
        deadline = WorkerDeadline(lambda: boot_seconds() >= shared.get(), fds["deadline"])
    sockets = {name: socket.socket(fileno=fd) for name, fd in fds.items() if name != "deadline"}
    os._exit(switched_body(spec, state, sockets, deadline))
