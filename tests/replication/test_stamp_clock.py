"""The clock that writes are dated by, when the wall's is set."""

from __future__ import annotations

from typing import Any

from actorgrid.actors.replication.messages import Mutate, Read
from actorgrid.actors.replication.stamp_clock import StampClock
from tests.replication.test_hosts import Hosts, hosts

__all__ = ["hosts"]
HOUR_US = 3_600 * 1_000_000
WALL, BOOT = 1_700_000_000 * 1_000_000, 5_000_000


def test_a_step_forward_counts_as_far_as_others_confirm_it_and_one_back_at_once() -> None:
    clock = StampClock(False, WALL, BOOT)
    assert clock.now_us(WALL + 10, BOOT + 10) == WALL + 10
    assert clock.now_us(WALL + HOUR_US, BOOT + 20) == WALL + 20, "nobody else says so"
    assert clock.unconfirmed_us == HOUR_US - 20
    clock.heard(WALL + 5_000_000, WALL + HOUR_US, BOOT + 30)
    assert clock.now_us(WALL + HOUR_US, BOOT + 40) == WALL + 5_000_010
    clock.heard(WALL + 2 * HOUR_US, WALL + HOUR_US, BOOT + 40)
    assert clock.now_us(WALL + HOUR_US, BOOT + 40) == WALL + HOUR_US, "no later than the wall clock here"
    assert clock.unconfirmed_us == 0
    assert clock.now_us(WALL, BOOT + 50) == WALL


def test_a_clock_that_is_disciplined_is_followed_and_a_lone_host_believes_its_own() -> None:
    clock = StampClock(False, WALL, BOOT)
    for second in range(1, 100):
        fast = WALL + second * 1_000_500  # 500 ppm, as NTP slews
        assert clock.now_us(fast, BOOT + second * 1_000_000) == fast
    assert StampClock(True, WALL, BOOT).now_us(WALL + HOUR_US, BOOT) == WALL + HOUR_US


def step(town: Hosts, name: str, by_us: int) -> None:
    """Set the wall clock of one host."""
    server: Any = town.server(name)
    clocks = server._clocks
    server._clocks = lambda: (clocks()[0] + by_us, clocks()[1])


def put(town: Hosts, name: str, key: str, value: object, **more: Any) -> None:
    town.nodes[name].request("distributed_state", Mutate(key, "lww_register", "put", value, **more))


def values(town: Hosts, key: str) -> list[Any]:
    return [node.request("distributed_state", Read(key))["value"] for node in town.nodes.values()]


def test_what_a_host_writes_whose_clock_is_an_hour_ahead_reaches_the_others_at_once(hosts: Hosts) -> None:
    put(hosts, "host-1", "before", 1)
    hosts.run(1.0)
    step(hosts, "host-0", HOUR_US)
    put(hosts, "host-0", "dated", "by host-0")
    hosts.mutate("host-0", 3)
    hosts.run(1.5)
    assert values(hosts, "dated") == ["by host-0"] * 3
    assert hosts.values() == [3] * 3
    put(hosts, "host-2", "dated", "later")
    hosts.run(1.5)
    assert values(hosts, "dated") == ["later"] * 3, "it has won nothing for an hour"
    assert hosts.server("host-0").metrics()["state_clock_unconfirmed_seconds"] > 3_500


def test_values_of_others_do_not_end_early_where_the_clock_is_an_hour_ahead(hosts: Hosts) -> None:
    put(hosts, "host-1", "soon", "there", ttl_s=600.0)
    hosts.run(1.0)
    step(hosts, "host-0", HOUR_US)
    hosts.run(1.0)
    assert values(hosts, "soon") == ["there"] * 3


def test_a_clock_that_was_an_hour_behind_and_is_set_right_is_confirmed_by_the_others_writes(hosts: Hosts) -> None:
    step(hosts, "host-0", -HOUR_US)
    hosts.run(1.0)
    put(hosts, "host-0", "a", 1)
    hosts.run(1.0)
    step(hosts, "host-0", HOUR_US)
    assert hosts.server("host-0").metrics()["state_clock_unconfirmed_seconds"] == 0, "it was not looked at yet"
    put(hosts, "host-0", "b", 1)
    assert hosts.server("host-0").metrics()["state_clock_unconfirmed_seconds"] > 3_500
    put(hosts, "host-1", "c", 1)
    hosts.run(1.5)
    put(hosts, "host-0", "d", 1)
    assert hosts.server("host-0").metrics()["state_clock_unconfirmed_seconds"] < 5
    hosts.run(1.0)
    assert values(hosts, "d") == [1] * 3
