"""Sends a graph to a door: first the file with what its steps run, then the graph itself."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dag import Dag
    from .environment import Environment
    from .http import AdminHttp
    from .working_dir import WorkingDir

SEND_S = 300.0


def submit(
    http: AdminHttp,
    dag: Dag,
    working_dir: WorkingDir | None = None,
    environment: Environment | None = None,
    refresh: bool = False,
) -> str:
    """Have *dag* accepted; gives the graph's id. Sent twice it is one graph.

    *environment* is that of a graph that names none. *refresh*: nothing is taken over from earlier graphs.
    """
    from .pickling import PYTHON

    # With a directory of its own it runs in what was sent, on this machine, too.
    environment = dag.environment or environment
    request, bundle = dag.request(
        directory=working_dir is None,
        installed=environment is None,
        python=PYTHON,
        refresh=refresh,
        working_dir="" if working_dir is None else working_dir.folder,
    )
    if working_dir is not None:
        request["working_dir"] = working_dir.send_to_door(http)
    if environment is not None:
        request["environment"] = environment.send_to_door(http, for_functions=bool(bundle))
        request["env"] = {**environment.variables, **request.get("env", {})}
    if bundle:
        send_file(http, bundle)
    return accept(http, request)


def send_file(http: AdminHttp, content: bytes) -> str:
    """Have a file where graphs are accepted; gives its digest. It is sent only where it is not yet."""
    digest = hashlib.sha256(content).hexdigest()
    if not http.post("/api/graph-files", {"digest": digest}, repeat=True)["here"]:
        http.post("/api/graph-files", {"digest": digest, "content": content}, repeat=True, timeout_s=SEND_S)
    return digest


def accept(http: AdminHttp, request: dict[str, Any]) -> str:
    """Have a graph accepted whose files are there; gives its id."""
    return str(http.post("/api/graphs", request, repeat=True, timeout_s=SEND_S)["job_id"])
