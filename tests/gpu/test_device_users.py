"""Who holds memory of a device: overdraws, processes without a grant, and the most that work has held."""

from __future__ import annotations

from actorgrid.actors.gpu.device_users import LISTED_MAX, DeviceUsers, MemoryGrant, Overdraw, pids_of
from actorgrid.actors.gpu.readings import DeviceProcess, Readings

SLACK = 256


def reads(*processes: tuple[int, int | None]) -> Readings:
    return Readings(processes=tuple(DeviceProcess(pid, memory) for pid, memory in processes))


def test_work_within_its_grant_and_the_drivers_share_is_left_alone() -> None:
    users = DeviceUsers()
    users.take({"gpu": reads((1, 2048 + SLACK))}, {1: "a.1"}, [MemoryGrant("a.1", ("gpu",), 2048)], SLACK)
    assert (users.overdraws, users.ungranted) == ([], [])
    assert users.by_work == {"a.1": {"gpu": 2048 + SLACK}}


def test_work_that_takes_more_is_an_overdraw_and_its_neighbour_is_not() -> None:
    users = DeviceUsers()
    grants = [MemoryGrant("a.1", ("gpu",), 2048), MemoryGrant("b.1", ("gpu",), 2048)]
    users.take({"gpu": reads((1, 5000), (2, 2000))}, {1: "a.1", 2: "b.1"}, grants, SLACK)
    assert users.overdraws == [Overdraw("a.1", "gpu", 5000, 2048)]


def test_all_processes_of_one_work_count_together() -> None:
    users = DeviceUsers()
    users.take({"gpu": reads((1, 1500), (2, 1500))}, {1: "a.1", 2: "a.1"}, [MemoryGrant("a.1", ("gpu",), 2048)], SLACK)
    assert users.overdraws == [Overdraw("a.1", "gpu", 3000, 2048)]


def test_the_grant_is_of_each_device() -> None:
    users = DeviceUsers()
    grant = MemoryGrant("a.1", ("one", "two"), 2048)
    users.take({"one": reads((1, 2000)), "two": reads((1, 2000))}, {1: "a.1"}, [grant], SLACK)
    assert users.overdraws == []


def test_a_grant_without_an_amount_is_never_overdrawn() -> None:
    users = DeviceUsers()
    users.take({"gpu": reads((1, 80_000))}, {1: "a.1"}, [MemoryGrant("a.1", ("gpu",), None)], SLACK)
    assert users.overdraws == []


def test_processes_of_nobody_and_on_others_devices_are_told_and_not_ended() -> None:
    users = DeviceUsers()
    grants = [MemoryGrant("a.1", ("one",), 2048)]
    users.take({"one": reads((7, 900)), "two": reads((1, 9000))}, {7: "", 1: "a.1"}, grants, SLACK)
    assert [(process.uuid, process.pid, process.work_id) for process in users.ungranted] == [
        ("one", 7, ""),
        ("two", 1, "a.1"),
    ]
    assert users.overdraws == []


def test_memory_that_the_driver_does_not_tell_is_not_counted() -> None:
    users = DeviceUsers()
    users.take({"gpu": reads((1, None))}, {1: "a.1"}, [MemoryGrant("a.1", ("gpu",), 1)], 0)
    assert (users.overdraws, users.by_work) == ([], {})


def test_a_process_that_is_gone_is_nobodys_guilt() -> None:
    users = DeviceUsers()
    users.take({"gpu": reads((1, 5000))}, {}, [MemoryGrant("a.1", ("gpu",), 1)], 0)
    assert (users.overdraws, users.ungranted) == ([], [])
    assert [(process.pid, process.memory_mib, process.is_gone) for process in users.gone] == [(1, 5000, True)]


def test_the_agents_own_processes_are_nobodys_guilt() -> None:
    users = DeviceUsers()
    users.take({"gpu": reads((1, 66), (2, 5))}, {2: ""}, [], 0, frozenset({1}))
    assert ([process.pid for process in users.ungranted], users.gone) == ([2], [])


def test_the_most_that_running_work_has_held_is_kept_until_it_ends() -> None:
    users, grant = DeviceUsers(), MemoryGrant("a.1", ("gpu",), None)
    for used in (100, 700, 300):
        users.take({"gpu": reads((1, used))}, {1: "a.1"}, [grant], 0)
    assert users.high_water_mib == {"a.1": {"gpu": 700}}
    users.take({}, {}, [], 0)
    assert users.high_water_mib == {}


def test_what_is_listed_is_bounded() -> None:
    users = DeviceUsers()
    many = {f"gpu-{place}": reads(*((pid, 1) for pid in range(1, 250))) for place in range(8)}
    users.take(many, dict.fromkeys(range(1, 250), ""), [], 0)
    assert len(users.ungranted) == LISTED_MAX
    assert pids_of(many) == tuple(range(1, 250))
