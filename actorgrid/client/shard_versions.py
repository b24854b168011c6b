"""Versions of the code of a set of light processes: which one its shards begin with, said in the shared state.

A version's number is the fencing token of the lock under which it was deployed: the ledger gives it, greater each time.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .own_user import own_user

if TYPE_CHECKING:
    from .client import Client


@dataclass(frozen=True, slots=True)
class ShardVersion:
    """A version of a module, as shards are told of it."""

    number: int
    name: str
    source: str
    share: float = 1.0
    failures_max: int = 0
    crashes_max: int = 3


def deployed_version(client: Client, group: str) -> ShardVersion | None:
    """The version that all processes of a set were given last, if any. Raises what asking the door raises."""
    record: Any = client.state.in_namespace(own_user(client.http)).get(_key(group), None)
    match record:
        case {
            "number": int(number),
            "name": str(name),
            "source": str(source),
            "failures_max": int(failures_max),
            "crashes_max": int(crashes_max),
        }:
            return ShardVersion(number, name, source, 1.0, failures_max, crashes_max)
    return None


def note_deployed(client: Client, group: str, version: ShardVersion) -> None:
    """Say that all processes have it, so that shards that are begun again begin with it."""
    client.state.in_namespace(own_user(client.http)).put(_key(group), asdict(version))


def deploy_lock(group: str) -> str:
    """The lock under which a version is deployed."""
    return f"deploy/{group}"


def _key(group: str) -> str:
    return f"deployed/{group}"
