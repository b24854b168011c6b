"""Which libraries the processes of a host have loaded: what one does not use costs memory and time all the same."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import actorgrid

PRELOADED = """
import json, sys
from actorgrid.actors.host import boot, children
specs, of_a_cluster = (children.OF_A_CLUSTER, True) if sys.argv[1] == "cluster" else (children.CHILDREN, False)
boot.preload(specs, of_a_cluster)
print(json.dumps(sorted(sys.modules)))
"""
NOT_ALONE = {
    "cryptography",
    "actorgrid.actors.consensus.raft_links",
    "actorgrid.actors.gateway.server.tls_listener",
    "actorgrid.transports.peer.link",
}
NOWHERE = {"yaml", "pydantic_settings", "dotenv", "rich", "numpy", "cloudpickle", "pynvml", "amdsmi"}
NOWHERE |= {"actorgrid.chaos", "aiohttp.client", "joserfc", "actorgrid.identity_provider"}
READING_COMMANDS = ("actorgrid.cli.show", "actorgrid.cli.jobs")


def loaded(script: str, *arguments: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def test_a_host_alone_forks_its_processes_without_what_only_a_cluster_needs() -> None:
    assert not loaded(PRELOADED, "alone") & (NOT_ALONE | NOWHERE)


def test_a_host_of_a_cluster_loads_all_of_it_before_it_forks() -> None:
    """Each of its processes would load its own copy otherwise."""
    found = loaded(PRELOADED, "cluster")
    assert found >= NOT_ALONE
    assert not found & NOWHERE


@pytest.mark.parametrize("module", READING_COMMANDS)
def test_a_command_that_only_asks_loads_no_part_of_a_host(module: str) -> None:
    found = loaded(f"import json, sys, actorgrid.cli.main, {module}; print(json.dumps(sorted(sys.modules)))")
    assert not {name for name in found if name.startswith("actorgrid.actors.")}
    assert not found & {"aiohttp", "asyncio", "pydantic", "uvloop", "cryptography", "thespian", "sqlite3", "msgpack"}


@pytest.fixture(scope="module")
def libraries() -> Iterator[dict[str, set[str]]]:
    """By process: the shared libraries that are in its memory."""
    with actorgrid.LocalCluster(gpus=2) as cluster:
        with cluster.client() as client:
            client.run(["true"], check=True)  # a host is up before what its work is forked from has loaded all of it
        front, found = psutil.Process(cluster.pid), {}
        for process in [front, *front.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):  # one that ends meanwhile, as a trial of containment does
                name = f"{process.name()} {process.pid}"
                found[name] = {Path(each.path).name for each in process.memory_maps()}
        yield found


def test_of_a_host_alone_only_the_door_has_a_library_for_certificates(libraries: dict[str, set[str]]) -> None:
    """It signs the heads of the audit log."""
    assert len(libraries) > 10
    holders = {title for title, names in libraries.items() if any(name.startswith("_rust.abi3") for name in names)}
    assert [title.rpartition(" ")[0] for title in holders] == ["actorgrid: gateway"]


def test_what_workers_are_forked_from_has_no_library_of_the_agent(libraries: dict[str, set[str]]) -> None:
    workers = [names for title, names in libraries.items() if any(word in title for word in ("zygote", "shim"))]
    assert workers
    for names in workers:
        assert not {
            name for name in names if name.startswith(("_pydantic_core", "loop.", "_http_parser", "libsqlite3"))
        }
