"""The start of a shim, in a process that was just forked for it: it takes its work, if that is still to be begun."""

from __future__ import annotations

import gc
import os
import socket
from pathlib import Path

import msgpack
from setproctitle import setproctitle

from actorgrid.transports.stack_room import with_stack_room

from .attempt_dir import AttemptDir
from .containment import Containment
from .function_shim import FunctionShim
from .isolation.own_sockets import DOOR_MODE
from .job_channels import channel_path
from .linux import adopt_orphans, boot_seconds
from .shim import Shim
from .shim_sockets import listen
from .worker_process import worker_body

CHANNEL_KINDS = ("command", "function", "functions")
"""The kinds of work that people may come to: jobs. Workers of sessions have none."""


def run_shim(folder: str, ready: int, deadline: float, containment: Containment) -> None:
    """Be the shim of the attempt in *folder*: called in a fresh process of its own session.

    Writes its pid to descriptor *ready* once it listens; writes nothing there when the attempt has had a shim, or when
    *deadline* has passed: then it is still free to be started.
    """
    path = Path(folder)
    directory = AttemptDir(path.parent, path.name)
    spec = directory.read_spec()
    # ``take`` comes last: what is taken counts as begun for good, so it must not be while there is a reason not to
    # begin.
    if spec is None or boot_seconds() >= deadline or directory.take() is None:
        return
    gc.enable()
    setproctitle(f"actorgrid: shim {directory.attempt_id}")
    adopt_orphans()
    sockets = [spec["control_path"]]
    listener = listen(spec["control_path"])
    inherited: list[socket.socket] = []
    place = spec.get("worker") or spec.get("objects")
    if place is not None:
        sockets.append(place["socket_path"])
        inherited.append(listen(sockets[-1]))
        if spec["kind"] == "objects":
            os.chmod(sockets[-1], DOOR_MODE)  # who comes to its folder may come in
    channels = None
    if spec["kind"] in CHANNEL_KINDS:
        sockets.append(channel_path(spec["control_path"]))
        channels = listen(sockets[-1])
    os.write(ready, msgpack.packb(os.getpid()))
    os.close(ready)
    kind = FunctionShim if spec["kind"] == "functions" else Shim
    shim = kind(directory, spec, listener, deadline, containment, channels)
    with_stack_room(shim.run, worker_body, inherited)
    for name in sockets:
        try:
            os.unlink(name)
        except FileNotFoundError:
            continue
