"""Which path brings large things, as the links server keeps it: what is measured, what is kept, what is told."""

from __future__ import annotations

from typing import Any

from actorgrid.actors.links.large_paths import LargePaths
from actorgrid.actors.links.rdma_streams import RdmaFigures
from actorgrid.transports.paths import PathKind

MIB = 2**20
OFF: RdmaFigures = {"on": False, "unavailable": "", "hosts": {}}


class World:
    """A clock moved by hand, and pairs that are up or not."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.pairs: set[str] = set()
        self.paths = LargePaths(lambda: self.now_s, lambda host_id: host_id in {"h2", "h3"}, self.pairs.__contains__)

    def view(self, rdma: RdmaFigures = OFF, reachable: bool = True) -> dict[str, Any]:
        (found,) = self.paths.views(["h2"], lambda _host_id: reachable, rdma)
        return {"used": found["used"], **{each["path"]: each for each in found["paths"]}}


def test_where_rdma_is_on_and_no_pair_is_up_several_connections_are_used() -> None:
    world = World()
    assert world.paths.choose("h2", 16 * MIB) == PathKind.TLS_STREAMS
    world.pairs.add("h2")
    assert world.paths.choose("h2", 16 * MIB) == PathKind.RDMA
    assert world.paths.choose("h3", 16 * MIB) == PathKind.TLS_STREAMS


def test_only_a_transfer_that_was_alone_is_measured() -> None:
    world = World()
    first = world.paths.begin("h2")
    second = world.paths.begin("h2")
    world.paths.came("h2", second, 16 * MIB, 0.1)
    world.paths.came("h2", first, 16 * MIB, 0.1)
    assert world.view()["tls_streams"]["mb_per_s"] is None
    world.paths.came("h2", world.paths.begin("h2"), 10_000_000, 0.1)
    assert world.view()["tls_streams"]["mb_per_s"] == 100.0 and world.view()["tls_streams"]["transfers"] == 1


def test_bursts_of_streams_are_measured_by_what_carried_them() -> None:
    world = World()
    for _ in range(11):
        world.paths.stream_bytes("h2", PathKind.TLS, 1_000_000)
        world.now_s += 0.01
    assert world.view()["tls"]["mb_per_s"] is None, "it may go on"
    world.now_s += 1.0
    assert world.view()["tls"]["mb_per_s"] == 100.0 and world.view()["rdma"]["mb_per_s"] is None


def test_why_a_path_is_not_there_is_told() -> None:
    world = World()
    assert world.view()["rdma"]["reason"] == "off: transports.rdma is false"
    path: Any = {"carrier": "tls", "reason": "no RDMA device", "pairs": 0, "pairs_failed": 0, "unconsumed": 0}
    assert world.view({"on": True, "unavailable": "", "hosts": {"h2": path}})["rdma"]["reason"] == "no RDMA device"
    world.paths.begin("h2")
    world.paths.failed("h2", "it takes no connections", path=True)
    found = world.view()
    assert found["used"] == "tls" and not found["tls_streams"]["available"]
    assert found["tls_streams"]["reason"] == "it takes no connections; tried again in 30 s"
    world.now_s += 31.0
    assert world.view()["used"] == "tls_streams" and world.view()["tls_streams"]["available"]
    away = world.view(reachable=False)
    assert away["used"] == "" and not any(away[kind]["available"] for kind in ("tls", "tls_streams", "rdma"))


def test_what_was_asked_wrongly_is_not_the_paths_fault() -> None:
    world = World()
    world.paths.begin("h2")
    world.paths.failed("h2", "the object is gone", path=False)
    assert world.view()["tls_streams"]["available"]


def test_of_hosts_that_are_no_members_nothing_is_kept() -> None:
    world = World()
    for number in range(100):
        assert world.paths.choose(f"x{number}", 16 * MIB) == PathKind.TLS_STREAMS
        world.paths.came(f"x{number}", world.paths.begin(f"x{number}"), 16 * MIB, 0.1)
        world.paths.failed(f"x{number}", "no", path=True)
    assert not world.paths._peers
    world.paths.begin("h2")
    world.paths.forget("h2")
    world.paths.came("h2", 1, 16 * MIB, 0.1)
    assert world.view()["tls_streams"]["available"]
