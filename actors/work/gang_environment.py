"""What a member of a gang finds in its environment: which one it is, of how many, and where they meet.

Each member is a node of its own to the frameworks, as a pod is on Kubernetes: it sees its own devices only, counted
from 0, so that LOCAL_RANK is 0 and ``torch.cuda.set_device(LOCAL_RANK)`` is right however many members share a host.
Which of them do is said in variables of ours.
"""

from __future__ import annotations

from collections import Counter

from actorgrid.actors.ledger.record_types import AttemptRecord, GangMemberRecord

LOCAL_TO_ITSELF = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


def rank_variables(attempt: AttemptRecord, rank: int) -> dict[str, str]:
    """The variables of the member of that rank, which win over the user's own."""
    members = attempt["members"]
    hosts = list(dict.fromkeys(member["host"] for member in members))
    here = [member["rank"] for member in members if member["host"] == members[rank]["host"]]
    meeting = attempt["rendezvous"]
    size = str(len(members))
    return {
        **LOCAL_TO_ITSELF,
        "RANK": str(rank),
        "WORLD_SIZE": size,
        "NODE_RANK": str(rank),
        "NNODES": size,
        "MASTER_ADDR": meeting["address"],
        "MASTER_PORT": str(meeting["port"]),
        "ACTORGRID_RANK": str(rank),
        "ACTORGRID_WORLD_SIZE": size,
        "ACTORGRID_LOCAL_RANK": str(here.index(rank)),
        "ACTORGRID_LOCAL_SIZE": str(len(here)),
        "ACTORGRID_HOST_RANK": str(hosts.index(members[rank]["host"])),
        "ACTORGRID_HOST_COUNT": str(len(hosts)),
        "ACTORGRID_HOSTS": _host_file(members),
        "ACTORGRID_ATTEMPT_NUMBER": str(attempt["number"]),
    }


def launcher_variables(attempt: AttemptRecord, rank: int, gpu_count: int) -> dict[str, str]:
    """The variables that ``torchrun`` takes for arguments it is not given; the user's own values win."""
    meeting = attempt["rendezvous"]
    return {
        "PET_NNODES": str(len(attempt["members"])),
        "PET_NODE_RANK": str(rank),
        "PET_NPROC_PER_NODE": str(max(1, gpu_count)),
        "PET_MASTER_ADDR": meeting["address"],
        "PET_MASTER_PORT": str(meeting["port"]),
        "PET_RDZV_ENDPOINT": f"{_bracketed(meeting['address'])}:{meeting['port']}",
        "PET_RDZV_ID": attempt["attempt_id"],
    }


def _host_file(members: list[GangMemberRecord]) -> str:
    """A line for each host, as MPI's host files have them: its address, and how many members are there."""
    slots = Counter(member["address"] for member in members)
    return "\n".join(f"{address} slots={count}" for address, count in slots.items())


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
