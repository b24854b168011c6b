"""The page of the architecture says what is there: every path, every room, and the order of who imports whom."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
QUOTED = re.compile(r"`([^`\n]+)`")
ROW = re.compile(r"^\| `([\w/]+)` \|", re.MULTILINE)
LAYERS = re.compile(r"^<!-- layers: (.+) -->\n\n    (.+)$", re.MULTILINE)
A_PATH = re.compile(r"[\w.-]+(/[\w.-]+)*")
FILES = (".py", ".pyx", ".pxd", ".c", ".toml", ".md", ".yaml")


def paths(text: str) -> list[str]:
    """What *text* quotes as a path: with a slash in it, or as the name of a file."""
    found = (quoted.rstrip("/") for quoted in QUOTED.findall(text))
    return [each for each in found if A_PATH.fullmatch(each) and ("/" in each or each.endswith(FILES))]


def missing(text: str) -> list[str]:
    """Paths of *text* that do not exist. ``messages.py`` and ``actor.py`` are spoken of as those of every room."""
    return [each for each in paths(text) if each not in ("messages.py", "actor.py") and not (ROOT / each).exists()]


NOW = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MODULE = re.compile(r"`(actorgrid\.(?:actors|chaos|configs|hotpath|supervisors|transports)[\w.]*)`")
IN_A_FOLDER = re.compile(
    r"(?<![\w./-])((?:actors|actorgrid|chaos|configs|hotpath|supervisors|tests|transports)/[\w./-]*\w)"
)


def gone(page: Path) -> list[str]:
    """Paths of files that a page names, and that are not there. (A decision names files as they were.)

    A compiled kernel is there for the Pythons that it was built for; a page may name another.
    """
    found = IN_A_FOLDER.findall(page.read_text(encoding="utf-8"))
    return [
        each
        for each in found
        if not each.endswith(".so") and not (ROOT / each).exists() and not (ROOT / f"{each}.py").exists()
    ]


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def contract(name: str) -> dict[str, Any]:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    (found,) = (each for each in tools["importlinter"]["contracts"] if each["name"] == name)
    return found  # type: ignore[no-any-return]


def test_every_path_exists() -> None:
    assert len(paths(PAGE)) > 150
    assert missing(PAGE) == []


@pytest.mark.parametrize("page", NOW, ids=lambda page: page.stem)
def test_every_page_names_files_that_exist(page: Path) -> None:
    assert gone(page) == []


def test_a_page_that_names_a_former_file_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("as in `actors/ledger/former.py`, and in `actors/ledger/state.py`")
    assert gone(page) == ["actors/ledger/former.py"]


@pytest.mark.parametrize("page", NOW, ids=lambda page: page.stem)
def test_every_module_that_a_page_names_exists(page: Path) -> None:
    for name in MODULE.findall(page.read_text(encoding="utf-8")):
        inside = name.split(".")[1:]
        there = ("/".join(inside[:depth]) for depth in range(len(inside), 0, -1))
        found = next(each for each in there if (ROOT / each).is_dir() or (ROOT / f"{each}.py").exists())
        file = ROOT / found / "__init__.py" if (ROOT / found).is_dir() else ROOT / f"{found}.py"
        rest = inside[found.count("/") + 1 :]
        assert all(re.search(rf"\b{each}\b", file.read_text(encoding="utf-8")) for each in rest), name


def test_every_class_that_the_page_names_exists() -> None:
    sources = "".join(path.read_text() for folder in ("actors", "actorgrid") for path in (ROOT / folder).rglob("*.py"))
    for name in re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)*)`", PAGE):
        assert re.search(rf"^class {name}\b", sources, re.MULTILINE), name


@pytest.mark.parametrize("renamed", ["actors/ledger/commands", "hotpath/placement.pyx", "chaos/scenarios"])
def test_one_that_was_renamed_is_found(renamed: str) -> None:
    assert f"`{renamed}`" in PAGE
    assert missing(PAGE.replace(f"`{renamed}`", f"`{renamed.replace('/', '/former_')}`")) != []


def test_a_file_is_named_with_its_folder() -> None:
    alone = {each for each in paths(PAGE) if "/" not in each} - {"messages.py", "actor.py", "pyproject.toml"}
    assert not alone, f"in which folder? {alone}"


def test_the_folders_are_all_there_are() -> None:
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text(encoding="utf-8").split()}
    there = {
        path.name
        for path in ROOT.iterdir()
        if path.is_dir() and "." not in path.name and not path.name.startswith("__") and path.name not in ignored
    }
    assert set(ROW.findall(section("The folders"))) == there


def test_the_rooms_are_all_there_are() -> None:
    there = {f"actors/{path.parent.name}" for path in (ROOT / "actors").glob("*/__init__.py")}
    assert set(ROW.findall(section("The rooms of actors"))) == there


@pytest.mark.parametrize("name", ["folders point downwards", "rooms of actors point downwards"])
def test_the_order_is_that_of_the_contract(name: str) -> None:
    shown = dict(LAYERS.findall(PAGE))[name]
    told = [set(layer.split(", ")) for layer in shown.split(" < ")]
    held = [{part.strip().removeprefix("actorgrid.") for part in each.split(":")} for each in contract(name)["layers"]]
    assert told == held[::-1]


def test_each_walk_names_files_and_each_change_what_to_touch() -> None:
    for walk in section("Eight walks").split("\n### ")[1:]:
        assert len(paths(walk)) >= 10, walk.splitlines()[0]
    for change in section("What to touch").split("\n### ")[1:]:
        assert paths(change), change.splitlines()[0]
    assert section("Eight walks").count("\n### ") == 8
