from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from actorgrid.errors import ActorGridError, BadRequest, DiskFull, NameTaken, NoSuchActor, Overloaded, StorageError
from actorgrid.supervisors import registry as registry_module
from actorgrid.supervisors.ref import Ref
from actorgrid.supervisors.registry import ENTRIES_PER_PROCESS_MAX, MemoryRegistry, Registry


class Host:
    """A boot of which only the sockets and the names are there."""

    registry: Registry | MemoryRegistry

    def __init__(self, folder: Path, in_memory: bool) -> None:
        self.folder = folder
        self.living: set[str] = set()
        self.registry = MemoryRegistry(self.living.__contains__) if in_memory else Registry(folder)

    def start(self, address: str, name: str = "") -> Ref:
        self.living.add(address)
        (self.folder / address).touch()
        return Ref(address, name)

    def end(self, ref: Ref) -> None:
        """It is dead, and not buried yet."""
        self.living.discard(ref.address)
        (self.folder / ref.address).unlink(missing_ok=True)

    def entries(self) -> list[str]:
        """What the registry keeps, whoever it is of. Folders of the index count for nothing: they go with a process."""
        if isinstance(self.registry, MemoryRegistry):
            return [*self.registry._unique, *self.registry._groups, *self.registry._owned]
        kept = self.folder / "names"
        below = [path for path in kept.rglob("*") if path.is_symlink() or path.parent != kept]
        return sorted(str(path.relative_to(kept)) for path in below if path.is_symlink() or "owned" not in path.parts)


@pytest.fixture(params=["links", "memory"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Host:
    return Host(tmp_path, request.param == "memory")


def said(pair: Ref | None) -> tuple[str, str] | None:
    """Both parts: refs are equal whatever their names."""
    return (pair.address, pair.name) if pair is not None else None


# -- unique keys


def test_a_registered_process_is_found_with_its_address_and_name(host: Host) -> None:
    ledger = host.start("admin.1.2", "consensus")
    host.registry.register("ledger", ledger)
    assert said(host.registry.whereis("ledger")) == ("admin.1.2", "consensus")
    assert host.registry.whereis("other") is None


def test_a_key_of_another_is_refused_and_the_error_says_who_has_it(host: Host) -> None:
    host.registry.register("ledger", host.start("admin.1", "consensus"))
    with pytest.raises(NameTaken) as refused:
        host.registry.register("ledger", host.start("admin.2", "impostor"))
    assert "consensus@admin.1 has it" in str(refused.value) and "impostor@admin.2" in str(refused.value)
    assert refused.value.details == {"holder": "admin.1"}
    assert host.registry.bury("admin.2") == []


def test_registering_again_changes_nothing(host: Host) -> None:
    me = host.start("admin.1", "consensus")
    host.registry.register("ledger", me)
    host.registry.register("ledger", Ref("admin.1", "renamed"))
    assert said(host.registry.whereis("ledger")) == ("admin.1", "consensus")
    assert host.registry.unregister("ledger", me) and host.registry.whereis("ledger") is None


def test_only_the_owner_unregisters_and_twice_does_no_harm(host: Host) -> None:
    me, other = host.start("admin.1"), host.start("admin.2")
    host.registry.register("ledger", me)
    assert not host.registry.unregister("ledger", other)
    assert host.registry.whereis("ledger") == me
    assert host.registry.unregister("ledger", me) and not host.registry.unregister("ledger", me)
    host.registry.register("ledger", other)
    assert host.registry.whereis("ledger") == other


def test_the_dead_are_not_found_and_their_key_is_free_once_they_are_buried(host: Host) -> None:
    before, after = host.start("admin.1", "worker"), host.start("admin.2", "worker")
    host.registry.register("ledger", before)
    host.end(before)
    assert host.registry.whereis("ledger") is None and host.registry.names() == {}
    with pytest.raises(NameTaken, match=r"worker@admin\.1 had it and is dead, but not buried yet"):
        host.registry.register("ledger", after)
    assert host.registry.bury("admin.1") == ["ledger"]
    host.registry.register("ledger", after)
    assert host.registry.whereis("ledger") == after


def test_the_dead_get_no_names(host: Host) -> None:
    dead = host.start("admin.1", "worker")
    host.end(dead)
    with pytest.raises(NoSuchActor, match=r"worker@admin\.1 is dead"):
        host.registry.register("ledger", dead)
    with pytest.raises(NoSuchActor):
        host.registry.join("ledgers", dead)
    assert host.entries() == []


KEYS = ["ledger", "a/b", ".", "..", ".hidden", "", "50 %", "%2E", "u=x", "日本語", "nul\0nul", "x" * 200, "é" * 33]


@pytest.mark.parametrize("key", [key for key in KEYS if key])
def test_any_text_can_be_a_key(host: Host, key: str) -> None:
    me = host.start("admin.1", key)
    host.registry.register(key, me)
    host.registry.join(key, me)
    assert said(host.registry.whereis(key)) == said(host.registry.members(key)[0]) == ("admin.1", key)
    assert list(host.registry.names()) == [key]
    assert host.registry.bury("admin.1") == [key] and host.entries() == []


@pytest.mark.parametrize("key", ["", "x" * 201, "é" * 34, "half \ud800", 7, None, b"ledger"], ids=ascii)
def test_what_cannot_be_a_key_is_refused_with_what_can(host: Host, key: str) -> None:
    me = host.start("admin.1")
    calls: list[Callable[[], object]] = [
        lambda: host.registry.register(key, me),
        lambda: host.registry.unregister(key, me),
        lambda: host.registry.whereis(key),
        lambda: host.registry.join(key, me),
        lambda: host.registry.leave(key, me),
        lambda: host.registry.members(key),
    ]
    for call in calls:
        with pytest.raises(BadRequest, match="text that is not empty and has at most 200 bytes"):
            call()
    assert host.entries() == []


@pytest.mark.parametrize("address", ["", "..", "a/b", "a..b", "a.", ".a", "a|b", "a\n", "u=x", "a" * 108], ids=ascii)
def test_what_cannot_be_an_address_is_refused(host: Host, address: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: host.registry.register("key", Ref(address)),
        lambda: host.registry.unregister("key", Ref(address)),
        lambda: host.registry.join("key", Ref(address)),
        lambda: host.registry.leave("key", Ref(address)),
        lambda: host.registry.bury(address),
    ]
    for call in calls:
        with pytest.raises(BadRequest, match="no address of a process"):
            call()


def test_a_name_that_is_too_long_is_refused(host: Host) -> None:
    with pytest.raises(BadRequest, match="cannot be a name"):
        host.registry.register("key", host.start("admin.1", "x" * 201))
    assert host.registry.whereis("key") is None


def test_names_come_in_order_and_in_pages(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "NAMES_LISTED_MAX", 3)
    me, dead = host.start("admin.1"), host.start("admin.2")
    for key in ("c", "a", "é", "b", "d"):
        host.registry.register(key, me)
    host.registry.register("aa", dead)
    host.end(dead)
    first = host.registry.names()
    assert list(first.items()) == [("a", me), ("b", me), ("c", me)]
    assert list(host.registry.names(after="c")) == ["d", "é"]
    assert host.registry.names(after="é") == {}


# -- duplicate keys


def test_any_number_join_a_key_and_come_in_the_order_of_their_addresses(host: Host) -> None:
    for number in (10, 9, 1):
        host.registry.join("workers", host.start(f"admin.{number}", f"worker_{number}"))
    found = host.registry.members("workers")
    assert [said(ref) for ref in found] == [(f"admin.{n}", f"worker_{n}") for n in (1, 9, 10)]
    assert host.registry.members("others") == []


def test_joining_twice_is_joining_once_and_leaving_twice_does_no_harm(host: Host) -> None:
    me, other = host.start("admin.1"), host.start("admin.2")
    host.registry.join("workers", me)
    host.registry.join("workers", me)
    assert host.registry.members("workers") == [me]
    assert not host.registry.leave("workers", other)
    assert host.registry.leave("workers", me) and not host.registry.leave("workers", me)
    assert host.registry.members("workers") == []
    host.registry.join("workers", me)
    assert host.registry.members("workers") == [me]


def test_dead_members_are_not_listed_and_their_burial_removes_them(host: Host) -> None:
    me, dead = host.start("admin.1"), host.start("admin.2")
    host.registry.join("workers", me)
    host.registry.join("workers", dead)
    host.end(dead)
    assert host.registry.members("workers") == [me]
    assert host.registry.bury("admin.2") == ["workers"] and host.registry.members("workers") == [me]


def test_a_unique_and_a_duplicate_key_of_one_spelling_are_two(host: Host) -> None:
    me, other = host.start("admin.1"), host.start("admin.2")
    host.registry.register("workers", me)
    host.registry.join("workers", other)
    assert host.registry.whereis("workers") == me and host.registry.members("workers") == [other]
    assert not host.registry.leave("workers", me) and not host.registry.unregister("workers", other)


# -- burial


def test_a_burial_covers_the_descendants_and_nobody_else(host: Host) -> None:
    family = ["admin.1", "admin.1.1", "admin.1.1.7", "admin.1.2"]
    others = ["admin", "admin.10", "admin.2.1"]
    for address in family + others:
        ref = host.start(address)
        host.registry.register(f"key of {address}", ref)
        host.registry.join("all", ref)
    for address in family:
        host.end(Ref(address))
    assert host.registry.bury("admin.1") == sorted(["all", *(f"key of {address}" for address in family)])
    assert list(host.registry.names()) == sorted(f"key of {address}" for address in others)
    assert host.registry.members("all") == [Ref(address) for address in ("admin", "admin.2.1", "admin.10")]


def test_a_burial_takes_no_key_that_the_dead_had_given_up(host: Host) -> None:
    before, after = host.start("admin.1"), host.start("admin.2")
    host.registry.register("ledger", before)
    host.registry.unregister("ledger", before)
    host.registry.register("ledger", after)
    host.end(before)
    assert host.registry.bury("admin.1") == [] and host.registry.whereis("ledger") == after


def test_nothing_is_left_of_the_buried_and_a_second_burial_finds_nothing(host: Host) -> None:
    for address in ("admin.1", "admin.1.1"):
        ref = host.start(address)
        host.registry.register(f"{address}'s", ref)
        host.registry.join("all", ref)
        host.end(ref)
    assert len(host.registry.bury("admin.1")) == 3
    assert host.registry.bury("admin.1") == [] and host.registry.bury("never.was") == []
    assert host.entries() == []
    assert not (host.folder / "names/owned/admin/1").exists()


# -- bounds


def test_a_process_has_a_maximum_of_entries_and_the_error_says_so(host: Host) -> None:
    me, other = host.start("admin.1", "greedy"), host.start("admin.1.1")
    host.registry.join("first", me)
    for number in range(1, ENTRIES_PER_PROCESS_MAX):
        host.registry.register(f"key {number}", me)
    with pytest.raises(Overloaded, match=r"greedy@admin\.1 has as many.*the limit is 1,000"):
        host.registry.register("one more", me)
    with pytest.raises(Overloaded):
        host.registry.join("one more", me)
    host.registry.register("key 1", me)
    host.registry.join("first", me)
    host.registry.register("one more", other)
    assert host.registry.unregister("key 1", me)
    host.registry.join("one more", me)


# -- what only links have


def test_processes_see_each_others_names_and_only_their_user_can(tmp_path: Path) -> None:
    host = Host(tmp_path, in_memory=False)
    host.registry.register("ledger", host.start("admin.1", "consensus"))
    program = (
        "import sys, pathlib; from actorgrid.supervisors.registry import Registry;"
        "print(Registry(pathlib.Path(sys.argv[1])).whereis('ledger'))"
    )
    seen = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert seen.stdout == "consensus@admin.1\n"
    folders = [path for path in (tmp_path / "names").rglob("*") if path.is_dir() and not path.is_symlink()]
    assert {path.stat().st_mode & 0o777 for path in [tmp_path / "names", *folders]} == {0o700}


def test_a_burial_removes_the_sockets_of_those_it_buries(tmp_path: Path) -> None:
    host = Host(tmp_path, in_memory=False)
    for address in ("admin.1", "admin.1.1", "admin.2"):
        host.registry.join("all", host.start(address))
    host.registry.bury("admin.1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["admin.2", "names"]


def test_a_full_table_of_descriptors_refuses_by_name_and_stops_no_lookup(tmp_path: Path) -> None:
    host = Host(tmp_path, in_memory=False)
    me = host.start("admin.1")
    host.registry.register("ledger", me)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        refused: list[ActorGridError] = []
        for call in (lambda: host.registry.register("more", me), host.registry.names):
            try:
                call()
            except Overloaded as error:
                refused.append(error)
        found, gone = host.registry.whereis("ledger"), host.registry.unregister("ledger", me)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert ["no descriptor left" in error.message for error in refused] == [True, True]
    assert found == me and gone


def test_when_the_boot_has_ended_nothing_is_found_and_the_rest_is_refused_by_name(tmp_path: Path) -> None:
    boot = tmp_path / "boot"
    boot.mkdir()
    host = Host(boot, in_memory=False)
    me = host.start("admin.1")
    boot.rename(tmp_path / "elsewhere")
    assert host.registry.whereis("ledger") is None and host.registry.members("ledgers") == []
    with pytest.raises(NoSuchActor):
        host.registry.register("ledger", me)
    with pytest.raises(StorageError, match="has this boot ended"):
        host.registry.names()
    with pytest.raises(StorageError):
        Registry(boot)
    assert not boot.exists()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root; its twin is in _crashes")
def test_on_a_full_file_system_names_are_refused_whole_and_lookups_go_on(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "nr_inodes=24,mode=0700", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting is forbidden here")
    try:
        host = Host(tmp_path, in_memory=False)
        me = host.start("admin.1")
        kept = []
        with pytest.raises(DiskFull, match=r"no room for another name.*df -i"):
            for number in range(24):
                host.registry.register(f"key {number}", me)
                kept.append(f"key {number}")
        with pytest.raises(DiskFull):
            host.registry.join("workers", me)
        assert kept and list(host.registry.names()) == sorted(kept)
        notes = [entry for entry in host.entries() if entry.startswith("owned/admin/1/")]
        assert len(notes) == len(kept) and not [entry for entry in host.entries() if entry.startswith("group/")]
        host.registry.unregister(kept[0], me)
        host.registry.register("another", me)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
