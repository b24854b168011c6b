"""Ends and removals on several hosts: all come to show the same, and nothing is left of what ended."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.replication import actor as actor_module
from actorgrid.actors.replication.messages import Mutate, ReadPrefix
from actorgrid.errors import ActorGridError
from tests.replication.test_hosts import Hosts

NOW_S = 1_700_000_000


class Town(Hosts):
    """The hosts, with wall clocks that go with the nodes' and may differ: ``skew_s`` by host."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.skew_s: dict[str, float] = {}
        self.begun = False
        monkeypatch.setattr(actor_module.time, "time_ns", self.wall_ns)
        super().__init__(directory, 3)

    def wall_ns(self) -> int:
        at_s = max((node.now_s for node in self.nodes.values()), default=0.0) if hasattr(self, "nodes") else 0.0
        return int((NOW_S + at_s) * 1e9)

    def ask(self, name: str, key: str, kind: str, operation: str, value: Any = None, **more: Any) -> Any:
        return self.nodes[name].request("distributed_state", Mutate(key, kind, operation, value, **more))["value"]

    def shown(self) -> list[dict[str, Any]]:
        return [
            {entry["key"]: entry["value"] for entry in node.request("distributed_state", ReadPrefix(""))}
            for node in self.nodes.values()
        ]

    def held(self) -> list[set[str]]:
        return [set(self.server(name)._replica.states) for name in self.names]  # type: ignore[union-attr]


@pytest.fixture
def town(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Town]:
    made = Town(tmp_path, monkeypatch)
    yield made
    for name in made.names:
        made.server(name).stop("test over")


def test_a_removal_takes_what_it_has_seen_and_what_others_did_meanwhile_stays(town: Town) -> None:
    town.ask("host-0", "c", "pn_counter", "increment", 5)
    town.ask("host-0", "s", "or_set", "add", "seen")
    town.ask("host-0", "r", "lww_register", "put", "seen")
    town.run(2.0)
    town.sides = {"host-2": 1}
    town.ask("host-2", "c", "pn_counter", "increment", 2)
    town.ask("host-2", "s", "or_set", "add", "unseen")
    town.run(0.1)
    for key in ("c", "s", "r"):
        town.ask("host-0", key, "lww_register", "delete")
    town.ask("host-1", "c", "pn_counter", "decrement", 1)
    town.sides = {}
    town.run(4.0)
    assert town.shown() == [{"c": 1, "s": ["unseen"]}] * 3


def test_what_ended_goes_from_memory_only_when_all_hosts_have_it(town: Town) -> None:
    town.ask("host-0", "old", "lww_register", "put", "before")
    town.run(2.0)
    town.sides = {"host-2": 1}
    town.ask("host-0", "old", "lww_register", "put", "short", ttl_s=1.0)
    town.ask("host-1", "gone", "lww_register", "put", 1)
    town.ask("host-1", "gone", "lww_register", "delete")
    town.run(160.0)
    assert town.shown() == [{}, {}, {"old": "before"}]
    assert town.held()[:2] == [{"old", "gone"}] * 2, "host-2 has an older value, and has to be told"
    town.sides = {}
    town.run(4.0)
    assert town.shown() == [{}] * 3
    town.run(170.0)
    assert town.held() == [set()] * 3
    digests = {town.server(name)._replica.digest() for name in town.names}  # type: ignore[union-attr]
    assert len(digests) == 1


@pytest.mark.parametrize("seed", range(3))
def test_any_writes_ends_and_removals_on_parted_hosts_agree_in_the_end(town: Town, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(4):
        town.sides = {name: dice.randrange(2) for name in town.names}
        for _ in range(25):
            name, number = dice.choice(town.names), dice.randrange(3)
            ttl_s = dice.choice([None, 0.5, 3.0])
            kind, operation, more = dice.choice(
                [
                    ("lww_register", "put", {"ttl_s": ttl_s}),
                    ("mv_register", "put", {"ttl_s": ttl_s}),
                    ("or_map", "put_field", {"ttl_s": ttl_s, "field": f"f{dice.randrange(2)}"}),
                    ("or_set", "add", {}),
                    ("pn_counter", "increment", {}),
                    ("ew_flag", "enable", {}),
                ]
            )
            key = f"{kind}/{number}"
            try:
                if dice.random() < 0.25:
                    town.ask(name, key, kind, "delete")
                else:
                    town.ask(name, key, kind, operation, 1 if kind != "lww_register" else dice.randrange(9), **more)
            except ActorGridError:
                continue  # there was no such key to delete
            if dice.random() < 0.3:
                town.run(0.2)
        town.sides = {}
        town.run(5.0)
        first, *others = town.shown()
        assert others == [first, first]
    town.run(170.0)
    first, *others = town.shown()
    assert others == [first, first]
    alone = [{key for key in held if key.startswith("lww_register/")} for held in town.held()]
    assert alone == [{key for key in first if key.startswith("lww_register/")}] * 3, "only what is shown is kept"
