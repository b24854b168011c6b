"""``gpus mig``: MIG instances of NVIDIA's GPUs: list them, make one, take one away."""

from __future__ import annotations

from typing import Any

import click

from actorgrid.errors import BadRequest, NotFound

from .call import CommandContext, host_command
from .host_names import hostnames
from .printing import say
from .show import say_folded, size, table
from .state import StateCommands

Row = dict[str, Any]
CHANGE_S = 90.0
"""The ledger is told first, and the driver asked three times."""


@click.group("mig", cls=StateCommands)
def mig() -> None:
    """List MIG instances, make one, take one away.

    A GPU of NVIDIA's can be cut into instances, each with memory and compute of its own, which the hardware keeps
    apart. Work asks for one with --gpu-profile. With gpus.mig=dynamic the agent makes and takes away by itself what
    work asks for.
    """


@mig.command("list")
@host_command
def list_gpus(call: CommandContext) -> None:
    """List GPUs that can be cut, their instances, and what there is room for."""
    gpus = call.http.get("/api/mig")["gpus"]
    if call.json:
        call.document({"gpus": gpus})
        return
    names = hostnames(call)
    rows = []
    for gpu in gpus:
        host = names.get(gpu["host"], gpu["host"])
        state = "on" if gpu["enabled"] else "off"
        rows.append([host, gpu["gpu"], f"MIG {state}", "", " ".join(job[:8] for job in gpu["jobs"]) or "-"])
        for each in gpu["instances"]:
            jobs = " ".join(job[:8] for job in each["jobs"]) or "-"
            rows.append([host, f"  {each['uuid']}", each["profile"], size(each["memory_bytes"]), jobs])
    table(["HOST", "GPU", "PROFILE", "MEMORY>", "JOBS"], rows, "no GPU here can be cut into MIG instances")
    for gpu in gpus:
        room = [f"{each['room']} x {each['name']}" for each in gpu["profiles"] if each["room"]]
        most = [f"{each['most']} x {each['name']}" for each in gpu["profiles"]] if not gpu["enabled"] else []
        if room or most:
            say_folded(f"  {gpu['gpu']} has room for: {', or '.join(room or most)}")


@mig.command("create")
@click.argument("gpu", metavar="GPU")
@click.argument("profile", metavar="PROFILE")
@host_command
def create(call: CommandContext, gpu: str, profile: str) -> None:
    """Make an instance of PROFILE (3g.40gb) in a GPU.

    GPU is its UUID or the beginning of it, its address on the bus, or its number if one host alone has that. MIG goes
    on if it is not; no work may be on the GPU as a whole then.
    """
    from actorgrid.client.http import segment

    meant = _gpu(call.http.get("/api/mig")["gpus"], gpu)
    path = f"/api/hosts/{segment(meant['host'])}/mig"
    answer = call.http.post(path, {"gpu": meant["gpu"], "profile": profile}, timeout_s=CHANGE_S)
    if call.json:
        call.document(answer)
    else:
        say(f"{answer['instance']} is there: actorgrid run --gpu-profile {profile} -- CMD")


@mig.command("destroy")
@click.argument("instance", metavar="INSTANCE")
@host_command
def destroy(call: CommandContext, instance: str) -> None:
    """Take away an instance that no work has.

    INSTANCE is its UUID or the beginning of it. With the last one of a GPU, MIG goes off, and the GPU is whole again.
    """
    from actorgrid.client.http import segment

    gpus = call.http.get("/api/mig")["gpus"]
    found = [(gpu, each) for gpu in gpus for each in gpu["instances"] if each["uuid"].startswith(instance)]
    if len(found) != 1:
        known = ", ".join(each["uuid"] for gpu in gpus for each in gpu["instances"][:8]) or "no instances"
        raise _none_or_several(len(found), "instance", instance, known)
    host, uuid = found[0][0]["host"], found[0][1]["uuid"]
    answer = call.http.delete(f"/api/hosts/{segment(host)}/mig/{segment(uuid)}")
    if call.json:
        call.document(answer)
    else:
        say(f"{uuid} is gone")


def _gpu(gpus: list[Row], text: str) -> Row:
    """The GPU that *text* means. Raises NotFound, or BadRequest when several could be meant."""
    exact = [gpu for gpu in gpus if text in (gpu["gpu"], gpu["pcie_bus_id"], str(gpu["index"]))]
    found = exact or [gpu for gpu in gpus if len(text) >= 4 and gpu["gpu"].startswith(text)]
    if len(found) == 1:
        return found[0]
    raise _none_or_several(len(found), "GPU", text, ", ".join(gpu["gpu"] for gpu in gpus[:8]) or "none that can be cut")


def _none_or_several(count: int, what: str, asked: str, known: str) -> NotFound | BadRequest:
    hint = "actorgrid gpus mig list"
    if count:
        return BadRequest(f"{count} {what}s are called {asked!r}", asked=asked, found=known, hint=hint)
    return NotFound(f"no {what} is called {asked!r}", asked=asked, found=known, hint=hint)
