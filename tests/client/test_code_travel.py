"""What of a program goes to a worker by value, and what by its name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import actorgrid
from actorgrid.client.client import Client
from actorgrid.client.distributions import Distributions, root_of
from actorgrid.errors import TaskFailed, UnpicklableFunction, UnpicklableResult
from actorgrid.import_environment import environment_of, of_plain, of_this_process, take, with_environment
from tests.client.stand_in import StandIn

LOCKED = """
import sys, threading
LOCK = threading.Lock()
def call():
    with LOCK:
        return __name__ in sys.modules
"""
HELPER = """
import sys
FACTOR = 2
class Found:
    def __init__(self, value): self.value = value
def call(): return __name__ in sys.modules
def scaled(x): return Found(FACTOR * x)
"""
MAIN = """
import importlib, json, os, sys, threading
import actorgrid
import by_path, helper, locked, twice
guard = threading.Lock()
def in_main():
    import late
    return late.VALUE
def uses_guard():
    with guard: pass
with actorgrid.connect(sys.argv[1], sys.argv[2]) as client:
    found = {
        "own": client.submit(helper.call).result(30),
        "own with a lock": client.submit(locked.call).result(30),
        "PYTHONPATH": client.submit(by_path.call).result(30),
        "own and PYTHONPATH": client.submit(twice.call).result(30),
        "directory": client.submit(os.getcwd).result(30),
        "imported late": client.submit(in_main).result(30),
        "class": isinstance(client.submit(helper.scaled, 4).result(30), helper.Found),
        "not imported for a result": not client.submit(helper.call).result(30),
    }
    with open(helper.__file__, "a") as file:
        file.write("FACTOR = 300\\n")
    importlib.reload(helper)
    found["edited"] = client.submit(helper.scaled, 4).result(30).value
    try:
        client.submit(uses_guard)
    except actorgrid.errors.UnpicklableFunction as error:
        found["refused"] = error.details["path"]
print(json.dumps(found))
"""


def test_the_users_own_modules_go_by_value_and_what_a_worker_can_import_by_name(host: StandIn, tmp_path: Path) -> None:
    app, library, elsewhere = tmp_path / "app", tmp_path / "lib", tmp_path / "elsewhere"
    for folder in (app, library, elsewhere):
        folder.mkdir()
    (app / "helper.py").write_text(HELPER)
    (app / "locked.py").write_text(LOCKED)
    (app / "twice.py").write_text(HELPER)
    (app / "late.py").write_text("VALUE = 'late'\n")
    (library / "by_path.py").write_text(LOCKED)
    (app / "main.py").write_text(MAIN)
    package = Path(actorgrid.__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, str(app / "main.py"), host.url, host.token],
        cwd=elsewhere,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (library, app, package)))},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "own": False,
        "own with a lock": True,
        "PYTHONPATH": True,
        "own and PYTHONPATH": False,
        "directory": str(elsewhere),
        "imported late": "late",
        "class": True,
        "not imported for a result": True,
        "edited": 1200,
        "refused": "global 'guard' of uses_guard",
    }


SLOTTED = """
import dataclasses, json, sys
import actorgrid
@dataclasses.dataclass(slots=True)
class Point:
    x: int
    y: int = 2
class Private:
    __slots__ = ("__hidden", "shown")
    def __init__(self): self.__hidden, self.shown = 1, 2
    def told(self): return self.__hidden + self.shown
class Odd(Exception):
    __slots__ = ("place",)
    def __init__(self, place): self.place = place
    def __setattr__(self, name, value):
        if hasattr(self, "place"): raise AttributeError("it is frozen")
        super().__setattr__(name, value)
def fails(): raise Odd(5)
def moved(point): return Point(point.x + 1)
def no_dictionary(value): return not hasattr(value, "__dict__")
with actorgrid.connect(sys.argv[1], sys.argv[2]) as client:
    found = [
        dataclasses.asdict(client.submit(moved, Point(3)).result(30)),
        client.submit(Private).result(30).told(),
        client.submit(no_dictionary, Point(3)).result(30),
    ]
    try:
        client.submit(fails).result(30)
    except Odd as error:
        found.append(error.place)
print(json.dumps(found))
"""


def test_classes_with_slots_go_to_a_worker_and_come_back(host: StandIn, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(SLOTTED)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "main.py"), host.url, host.token],
        env={**os.environ, "PYTHONPATH": str(Path(actorgrid.__file__).resolve().parents[1])},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [{"x": 4, "y": 2}, 3, True, 5]


# -- distributions


def metadata_of(folder: Path, name: str, **files: str) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    for file, text in files.items():
        (info / file.replace("_json", ".json").replace("_txt", ".txt")).write_text(text)


def test_what_a_distribution_beside_it_names_is_installed_and_its_neighbour_is_not(tmp_path: Path) -> None:
    metadata_of(tmp_path, "shapes", top_level_txt="shapes\n")
    found = Distributions()
    assert found.own("shapes.round", str(tmp_path / "shapes" / "round.py"))
    assert not found.own("train", str(tmp_path / "train.py"))
    metadata_of(tmp_path, "listed", RECORD="listed/__init__.py,,\nlisted_alone.py,,\n")
    (tmp_path / "listed").mkdir()
    for file in ("listed/__init__.py", "listed_alone.py"):  # from Python 3.12 on, what is not there is not listed
        (tmp_path / file).touch()
    os.utime(tmp_path, ns=(1, 1))
    assert found.own("listed.part", str(tmp_path / "listed" / "part.py"))
    assert found.own("listed_alone", str(tmp_path / "listed_alone.py"))


@pytest.mark.parametrize(("top_level", "neighbour"), [("shapes\n", False), ("", True)])
def test_an_editable_project_owns_what_it_names_wherever_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, top_level: str, neighbour: bool
) -> None:
    project, packages = tmp_path / "project dir", tmp_path / "site-packages"
    project.mkdir()
    origin = {"url": project.as_uri(), "dir_info": {"editable": True}}
    metadata_of(packages, "shapes", direct_url_json=json.dumps(origin), top_level_txt=top_level)
    (packages / "_shapes.pth").write_text(f"import sys\n{project}\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(packages)])
    found = Distributions()
    assert found.own("shapes", str(project / "src" / "shapes" / "__init__.py"))
    assert found.own("train", str(project / "train.py")) == neighbour
    assert found.own("shapes", str(project / "code" / "__init__.py"))
    assert not found.own("other", str(tmp_path / "other.py"))


def test_the_folder_where_an_import_began_follows_from_name_and_file() -> None:
    assert root_of("a.b", "/x/a/b.py") == "/x"
    assert root_of("a.b", "/x/a/b/__init__.py") == "/x"
    assert root_of("a.b", "/x/a/b.cpython-311-x86_64-linux-gnu.so") == "/x"
    assert root_of("a", "/a.py") == "/"
    assert root_of("a.b", "/x/c/b.py") == ""
    assert root_of("a", "/x/a") == ""


# -- the environment


def test_an_environment_behind_a_payload_is_found_and_a_payload_without_one_is_left_alone() -> None:
    here = of_this_process()
    assert here.directory == os.getcwd() and here.machine
    assert environment_of(with_environment(b"payload", here)) == here
    for payload in (b"", b"payload", b"\xff\xff\xff\xffAGplace1", b"\x00\x00\x00\x01AGplace1"):
        assert environment_of(payload) is None


@pytest.mark.parametrize("path", ["a\0b", 7, None])
def test_an_environment_with_what_is_no_path_is_none(path: Any) -> None:
    plain = of_this_process().to_plain()
    assert of_plain({**plain, "before": [path]}) is None
    assert of_plain({**plain, "before": ["/x"] * 300}) is None


def test_an_environment_of_another_machine_changes_nothing(tmp_path: Path) -> None:
    before = list(sys.path), os.getcwd()
    assert not take(of_this_process()._replace(machine="another", directory=str(tmp_path), before=("/nowhere",)))
    assert not take(of_this_process()._replace(machine="", directory=str(tmp_path)))
    assert (sys.path, os.getcwd()) == before


def test_more_paths_than_are_sent_are_cut_off_at_the_end(tmp_path: Path) -> None:
    plain = of_this_process()._replace(before=tuple(f"/{n}" for n in range(1000)), after=("/last",)).to_plain()
    assert (len(plain["before"]), plain["after"]) == (256, [])


# -- who is to blame


class Holder:
    def __init__(self, value: Any) -> None:
        self.value = value


class Refusal(Exception):
    pass


def test_an_argument_that_cannot_be_pickled_is_named_at_any_depth(client: Client) -> None:
    lock: Any = threading.Lock()
    for _ in range(100):
        lock = [lock]
    many = [Holder({"model": (1, 2, {"at": number})}) for number in range(20_000)]
    many[15_000].value["model"][2]["at"] = Holder(threading.Lock())
    with pytest.raises(UnpicklableFunction) as caught:
        client.submit(len, many)
    assert caught.value.details["path"] == (
        "argument 0 → item 15000 → attribute 'value' of Holder → key 'model' → item 2 → key 'at'"
        " → attribute 'value' of Holder"
    )
    with pytest.raises(UnpicklableFunction, match=r"argument 0 → item 0 → item 0 → item 0 → \(93 more\) → item 0"):
        client.submit(len, lock)


def test_a_result_that_cannot_be_pickled_is_named_at_any_depth(client: Client) -> None:
    def call() -> object:
        return {"rows": [1, 2, Holder([threading.Lock()])]}

    with pytest.raises(UnpicklableResult, match="key 'rows' → item 2 → attribute 'value' of Holder → item 0"):
        client.submit(call).result(30)


def test_an_exception_that_cannot_be_pickled_says_which_part_of_it(client: Client) -> None:
    def call() -> None:
        error = Refusal("no")
        error.holder = Holder({"key": threading.Lock()})  # type: ignore[attr-defined]
        raise error

    with pytest.raises(TaskFailed, match="no") as caught:
        client.submit(call).result(30)
    assert any(
        said.startswith("holder → attribute 'value' of Holder → key 'key': TypeError")
        for said in caught.value.details["left_behind"]
    )
