from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from actorgrid.errors import NameTaken, NoSuchActor
from actorgrid.supervisors.ref import Ref
from actorgrid.supervisors.registry import MemoryRegistry, Registry

KEYS = st.sampled_from(["ledger", "a/b", "..", "é"]) | st.text(min_size=1, max_size=6)


class AgainstADictionary(RuleBasedStateMachine):
    """Both registries beside the obvious one: two sets of pairs."""

    processes = Bundle("processes")

    def __init__(self) -> None:
        super().__init__()
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name)
        self.living: set[str] = set()
        self.registries = [Registry(self.folder), MemoryRegistry(self.living.__contains__)]
        self.unique: dict[str, str] = {}
        self.joined: set[tuple[str, str]] = set()
        self.children: dict[str, int] = {}
        self.keys = {"ledger"}

    def teardown(self) -> None:
        self.temporary.cleanup()

    def both(self, name: str, *arguments: object) -> object:
        """What the two did, which must be the same."""
        done = []
        for registry in self.registries:
            try:
                done.append(getattr(registry, name)(*arguments))
            except (NameTaken, NoSuchActor) as error:
                done.append((error.code, str(error)))
        assert done[0] == done[1]
        return done[0]

    def begin(self, address: str) -> str:
        self.living.add(address)
        (self.folder / address).touch()
        return address

    @initialize(target=processes)
    def start_the_first(self) -> str:
        return self.begin("admin")

    @rule(target=processes, parent=processes)
    def start(self, parent: str) -> str:
        self.children[parent] = self.children.get(parent, 0) + 1
        return self.begin(f"{parent}.{self.children[parent]}")

    @rule(process=processes, key=KEYS)
    def register(self, process: str, key: str) -> None:
        self.keys.add(key)
        outcome = self.both("register", key, Ref(process, f"name of {process}"))
        if process not in self.living:
            assert "NoSuchActor" in str(outcome)
        elif self.unique.setdefault(key, process) == process:
            assert outcome is None
        else:
            assert "NameTaken" in str(outcome)

    @rule(process=processes, key=KEYS)
    def unregister(self, process: str, key: str) -> None:
        had = self.unique.get(key) == process
        assert self.both("unregister", key, Ref(process)) == had
        if had:
            del self.unique[key]

    @rule(process=processes, key=KEYS)
    def join(self, process: str, key: str) -> None:
        self.keys.add(key)
        outcome = self.both("join", key, Ref(process, "member"))
        if process in self.living:
            assert outcome is None
            self.joined.add((key, process))

    @rule(process=processes, key=KEYS)
    def leave(self, process: str, key: str) -> None:
        assert self.both("leave", key, Ref(process)) == ((key, process) in self.joined)
        self.joined.discard((key, process))

    @rule(process=processes)
    def end(self, process: str) -> None:
        """The process and its descendants: they die with it."""
        for each in [each for each in self.living if f"{each}.".startswith(f"{process}.")]:
            self.living.remove(each)
            (self.folder / each).unlink()

    @rule(process=processes)
    def bury(self, process: str) -> None:
        self.end(process)
        dead = f"{process}."
        keys = {key for key, holder in self.unique.items() if f"{holder}.".startswith(dead)}
        keys |= {key for key, member in self.joined if f"{member}.".startswith(dead)}
        assert self.both("bury", process) == sorted(keys)
        self.unique = {key: who for key, who in self.unique.items() if not f"{who}.".startswith(dead)}
        self.joined = {(key, who) for key, who in self.joined if not f"{who}.".startswith(dead)}

    @invariant()
    def lookups_agree_with_the_dictionary(self) -> None:
        alive = {key: Ref(who) for key, who in self.unique.items() if who in self.living}
        assert self.both("names") == alive
        for key in self.keys:
            assert self.both("whereis", key) == alive.get(key)
            members = self.both("members", key)
            assert isinstance(members, list)
            assert {ref.address for ref in members} == {w for k, w in self.joined if k == key and w in self.living}

    @invariant()
    def there_is_a_note_for_each_link_and_no_other_and_no_empty_group(self) -> None:
        names = self.folder / "names"
        notes = {
            (".".join(path.parent.relative_to(names / "owned").parts), path.name)
            for path in (names / "owned").rglob("*")
            if path.is_symlink()
        }
        links = {(path.readlink().name.partition("|")[0], f"u={path.name}") for path in (names / "unique").iterdir()}
        links |= {(path.name, f"g={path.parent.name}") for path in (names / "group").glob("*/*")}
        assert notes == links and len(notes) == len(self.unique) + len(self.joined)
        assert all(any(group.iterdir()) for group in (names / "group").iterdir())


AgainstADictionary.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAgainstADictionary = AgainstADictionary.TestCase
