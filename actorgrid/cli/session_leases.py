"""Workers that clients' sessions hold: what ``ps --sessions``, ``why``, ``cancel`` and ``logs`` show and do of them."""

from __future__ import annotations

from typing import Any

from actorgrid.client.http import AdminHttp, segment
from actorgrid.errors import BadRequest, NotFound, UnknownJob

from .call import CommandContext
from .lookup import find_job, short_ids
from .printing import say
from .show import ago, last_known, share, size, table

COLUMNS = ["LEASE", "USER", "GPUS>", "CPUS>", "ON", "HELD>", "SESSION"]


def find_leases(http: AdminHttp, text: str, missing: UnknownJob) -> list[dict[str, Any]]:
    """Find the lease whose id begins so, or all of the session whose id does. Raises *missing* when there is none.

    Raises BadRequest when several leases or sessions begin so.
    """
    try:
        leases: list[dict[str, Any]] = http.get("/api/leases")["leases"] if text else []
    except NotFound:
        raise missing from None  # a host of an earlier version
    found = [lease for lease in leases if lease["lease_id"].startswith(text)]
    sessions = [lease for lease in leases if lease["session_id"].startswith(text)]
    if len(found) > 1 or len({lease["session_id"] for lease in sessions}) > 1:
        raise BadRequest(f"several leases or sessions begin with {text!r}", asked=text, hint="write more of the id")
    if not found and not sessions:
        raise missing
    return found or sessions


def find_work(http: AdminHttp, text: str) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """The job that a person means, or the leases of a session. Raises UnknownJob, BadRequest."""
    try:
        return find_job(http, text), []
    except UnknownJob as error:
        return None, find_leases(http, text, error)


def show_leases(call: CommandContext) -> None:
    """``ps --sessions``."""
    answer = call.http.get("/api/leases")
    if call.json:
        call.document(answer)
        return
    last_known(answer)
    names = short_ids([lease["lease_id"] for lease in answer["leases"]])
    rows = [
        [
            names[lease["lease_id"]],
            str(lease["user_id"]) or "-",
            _gpus(lease),
            share(lease["cpu_milli"]),
            _place(lease),
            ago(lease["held_since"]),
            str(lease["session_id"])[-16:],
        ]
        for lease in answer["leases"]
    ]
    table(COLUMNS, rows, "no session holds a worker", ["SESSION", "CPUS>", "HELD>"])


def _gpus(lease: dict[str, Any]) -> str:
    count = len(lease["gpu_indexes"])
    if not count:
        return "-"
    memory = lease["gpu_memory_mib"]
    return share(count * lease["gpu_milli"]) + (f" ({size(memory << 20)})" if memory else "")


def _place(lease: dict[str, Any]) -> str:
    gpus = ",".join(str(index) for index in lease["gpu_indexes"])
    gone = "" if lease["presence"] == "present" else f" ({lease['presence']})"
    return str(lease["hostname"]) + gone + (f" gpu {gpus}" if gpus else "")


def explain_leases(call: CommandContext, leases: list[dict[str, Any]]) -> None:
    """``why`` of a lease, or of a session's."""
    if call.json:
        call.document({"leases": leases})
        return
    for lease in leases:
        held = f"{_gpus(lease)} GPUs and " if lease["gpu_indexes"] else ""
        say(
            f"{lease['lease_id']} (a session's worker) held for {ago(lease['held_since'])} by user "
            f"{lease['user_id'] or '-'}: {held}{share(lease['cpu_milli'])} CPUs on {_place(lease)}"
        )
        say(f"  session {lease['session_id']}: its client renews it, and gives the worker back when it is idle")
        say("  next steps, any of")
        say(f"  - actorgrid logs {lease['lease_id']}")
        say(f"  - actorgrid cancel {lease['lease_id']} kills what runs under it and frees what it holds")


def cancel_leases(http: AdminHttp, leases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """End leases; gives what came of each."""
    return [http.post(f"/api/leases/{segment(lease['lease_id'])}/cancel", timeout_s=70.0) for lease in leases]


def lease_output(http: AdminHttp, lease_id: str, stream: str) -> bytes:
    """All that the lease's worker wrote to *stream* under it."""
    pieces: list[bytes] = []
    offset = 0
    while True:
        found = http.get(f"/api/leases/{segment(lease_id)}/logs", stream=stream, offset=offset or None)
        if not isinstance(found, bytes) or not found:
            return b"".join(pieces)
        pieces.append(found)
        offset += len(found)
