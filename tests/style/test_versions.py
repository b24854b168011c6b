"""The sources suit every CPython of this machine: they compile without a warning, and what they take of Python's own
modules is there. The suite itself runs on each version in ``make test-versions``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from tests import versions
from tests.versions import Interpreter

from .test_house import FOLDERS, PROJECT, ROOT

# Runs in the version that is asked, with that version's grammar and library. Reads paths, says what is wrong.
CHECK = """
import ast, importlib, json, sys, warnings
warnings.simplefilter("error")

def taken(tree):
    # What is taken of other modules: (module, name or None). What is imported for types alone is left out.
    found, modules, asked, left = set(), {}, [], [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.Import):
            for alias in node.names:
                found.add((alias.name, None))
                bound = alias.asname or alias.name.split(".")[0]
                modules[bound] = alias.name if alias.asname else bound
        elif isinstance(node, ast.ImportFrom):
            if not node.level:
                found.update((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            asked.append((node.value.id, node.attr))
        else:
            left.extend(ast.iter_child_nodes(node))
    return found | {(modules[name], attribute) for name, attribute in asked if name in modules}

said = json.load(sys.stdin)
standard = sys.stdlib_module_names | set(said["standard"])
wrong, needed = [], {}
for path in said["paths"]:
    with open(path, encoding="utf-8") as file:
        source = file.read()
    try:
        tree = ast.parse(source, path)
        compile(tree, path, "exec", dont_inherit=True)
    except (SyntaxError, Warning) as error:
        wrong.append(f"{path}: {error}")
        continue
    for each in taken(tree):
        needed.setdefault(each, path)
for (module, name), path in sorted(needed.items(), key=str):
    if module.split(".")[0] not in standard or module == "__future__":
        continue
    try:
        loaded = importlib.import_module(module)
        if name is not None and not hasattr(loaded, name):
            importlib.import_module(f"{module}.{name}")
    except (ImportError, Warning) as error:
        wrong.append(f"{path}: {module}{'.' + name if name else ''}: {error}")
print(json.dumps(wrong))
"""


def wrong_on(python: Interpreter, paths: list[Path]) -> list[str]:
    command = [python.path, "-I", "-c", CHECK]
    asked = json.dumps({"paths": [str(path) for path in paths], "standard": sorted(sys.stdlib_module_names)})
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def product() -> list[Path]:
    folders = (*FOLDERS, "actorgrid")
    return [ROOT / "setup.py", *(path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))]


@pytest.fixture(scope="module", params=versions.interpreters(), ids=lambda each: each.full_version)
def python(request: pytest.FixtureRequest) -> Interpreter:
    return cast(Interpreter, request.param)


@pytest.mark.system
def test_the_product_suits_every_python_of_this_machine(python: Interpreter) -> None:
    assert not wrong_on(python, product())


PLANTED = {
    "print('\\d')": "invalid escape sequence",
    # Gone in 3.12, deprecated before; a Python that never had it cannot know whose it is.
    **({"from asyncore import loop": "asyncore"} if "asyncore" in sys.stdlib_module_names else {}),
    "def f():\n    import asyncio as a\n    return a.no_such_name": "asyncio.no_such_name",
    "from os.path import no_such_name": "os.path.no_such_name",
    "x = = 1": "invalid syntax",
}


def test_the_check_above_finds_what_does_not_suit(python: Interpreter, tmp_path: Path) -> None:
    paths = [tmp_path / f"planted_{number}.py" for number in range(len(PLANTED))]
    for path, source in zip(paths, PLANTED, strict=True):
        path.write_text(source)
    found = sorted(wrong_on(python, paths))  # each begins with its path
    assert len(found) == len(PLANTED)
    for line, path, said in zip(found, paths, PLANTED.values(), strict=True):
        assert line.startswith(str(path)) and said in line


def test_a_name_for_types_alone_has_not_to_be_there(python: Interpreter, tmp_path: Path) -> None:
    source = "import os.path\nfrom xml.dom import minidom\nif TYPE_CHECKING:\n    from os import no_such_name\n"
    (tmp_path / "fine.py").write_text(source)
    assert not wrong_on(python, [tmp_path / "fine.py"])


def test_what_does_not_start_or_is_too_old_is_no_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    this = versions.asked(Path(sys.executable))
    assert this is not None and this.version == sys.version_info[:2]
    answers = {"python3.11": "exit 1", "python3.12": "exit 127", "python3.13": "echo '{}'", "python3.10": "exit 0"}
    answers.pop(f"python{this.name}", None)
    for name, text in answers.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")  # as a shim answers for a version that is not chosen
        (tmp_path / name).chmod(0o755)
    (tmp_path / f"python{this.name}").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(versions, "FOLDERS", ())
    versions.interpreters.cache_clear()
    try:
        assert [each.version for each in versions.interpreters()] == [this.version]
    finally:
        versions.interpreters.cache_clear()


def test_every_version_of_the_metadata_is_looked_for() -> None:
    assert f">={'.'.join(map(str, versions.oldest()))}" == PROJECT["requires-python"]
    assert sys.version_info[:2] in {each.version for each in versions.interpreters()}


def environments(folder: Path, *arguments: str) -> set[str]:
    """The virtual environments in which make would run the tests."""
    for name in ("Makefile", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, folder)
    plain = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    command = ["make", "--dry-run", "test", *arguments]
    done = subprocess.run(command, cwd=folder, env=plain, capture_output=True, text=True, check=False)
    return set(re.findall(r"^(\S+)/bin/python -m pytest", done.stdout, re.MULTILINE))


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_each_version_gets_an_environment_of_its_own(tmp_path: Path, python: Interpreter) -> None:
    chosen = f"PYTHON={python.path}"
    assert environments(tmp_path) == environments(tmp_path, chosen) == {".venv"}  # the first is .venv
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").touch()
    (tmp_path / ".venv/lib/python3.1").mkdir(parents=True)
    assert environments(tmp_path) == {".venv"}
    assert environments(tmp_path, chosen) == {f".venv-{python.name}"}
    assert environments(tmp_path, chosen, "VENV=elsewhere") == {"elsewhere"}
    (tmp_path / f".venv/lib/python{python.name}").mkdir()
    assert environments(tmp_path, chosen) == {".venv"}
    assert environments(tmp_path, "PYTHON=/nowhere/python3") == set()
