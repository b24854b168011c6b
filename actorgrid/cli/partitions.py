"""``gpus partitions``: how AMD's GPUs are cut; cut one otherwise."""

from __future__ import annotations

from typing import Any

import click

from actorgrid.errors import BadRequest, NotFound

from .call import CommandContext, host_command
from .host_names import hostnames
from .printing import say
from .show import size, table
from .state import StateCommands

CHANGE_S = 120.0
COMPUTE = ("SPX", "DPX", "TPX", "QPX", "CPX")
MEMORY = ("NPS1", "NPS2", "NPS4", "NPS8")


@click.group("partitions", cls=StateCommands)
def partitions() -> None:
    """List how AMD's GPUs are cut, cut one otherwise.

    A mode is of the whole GPU: SPX is all of it in one, CPX each die by itself; NPS1 to NPS8 cut its memory. Each part
    is a device, and work gets it as any GPU.
    """


@partitions.command("list")
@host_command
def list_partitions(call: CommandContext) -> None:
    """List AMD's GPUs that can be cut, and their parts."""
    gpus = call.http.get("/api/partitions")["gpus"]
    if call.json:
        call.document({"gpus": gpus})
        return
    names = hostnames(call)
    rows = []
    for gpu in gpus:
        host = names.get(gpu["host"], gpu["host"])
        rows.append([host, gpu["gpu"], gpu["mode"], "", ""])
        for each in gpu["parts"]:
            jobs = " ".join(job[:8] for job in each["jobs"]) or "-"
            rows.append([host, f"  {each['uuid']}", str(each["index"]), size(each["memory_bytes"]), jobs])
    table(["HOST", "GPU", "MODE", "MEMORY>", "JOBS"], rows, "no GPU of AMD's here can be cut")


@partitions.command("set")
@click.argument("gpu", metavar="GPU")
@click.argument("mode", metavar="MODE", type=click.Choice([*COMPUTE, *MEMORY], case_sensitive=False))
@host_command
def set_partition(call: CommandContext, gpu: str, mode: str) -> None:
    """Have a GPU be cut by MODE: SPX to CPX, or NPS1 to NPS8.

    GPU is its place on the bus (0000:0c:00), or the UUID or number of a part of it. No work may be on any part.
    """
    from actorgrid.client.http import segment

    gpus: list[dict[str, Any]] = call.http.get("/api/partitions")["gpus"]
    found = [each for each in gpus if _is_meant(each, gpu)]
    if len(found) != 1:
        known = ", ".join(each["gpu"] for each in gpus[:8]) or "none that can be cut"
        kind = BadRequest if found else NotFound
        raise kind(
            f"{len(found)} GPUs are called {gpu!r}", asked=gpu, found=known, hint="actorgrid gpus partitions list"
        )
    mode = mode.upper()
    body = {"gpu": found[0]["gpu"], "change": "compute" if mode in COMPUTE else "memory", "mode": mode}
    answer = call.http.post(f"/api/hosts/{segment(found[0]['host'])}/partitions", body, timeout_s=CHANGE_S)
    if call.json:
        call.document(answer)
    else:
        say(f"{answer['gpu']} is cut by {answer['mode']}: actorgrid gpus shows its parts")


def _is_meant(gpu: dict[str, Any], text: str) -> bool:
    return text == gpu["gpu"] or any(text in (each["uuid"], str(each["index"])) for each in gpu["parts"])
