"""Installed code goes to a worker by its name, however it was installed: real installations by pip, a real agent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import actorgrid
from tests.system.agent import Agent

PYPROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "shapes"
version = "1.0"
[tool.setuptools]
packages = ["shapes"]
"""
PACKAGE = """
import sys, threading
LOCK = threading.Lock()
def area(x):
    with LOCK:
        return [x * x, __name__ in sys.modules]
"""
PROGRAM = """
import json, site, sys
for folder in sys.argv[2:]:
    site.addsitedir(folder)
import actorgrid, shapes
with actorgrid.connect(data_dir=sys.argv[1]) as client:
    print(json.dumps([client.submit(shapes.area, 3, durable=durable).result(60) for durable in (False, True)]))
"""


def pip(*words: str) -> None:
    flags = ["--no-build-isolation", "--no-deps", "--no-index", "--no-cache-dir", "--quiet"]
    subprocess.run([sys.executable, "-m", "pip", "install", *flags, *words], check=True, timeout=120)


def project(folder: Path, package: str) -> Path:
    """A project whose package ``shapes`` has its files in *package*."""
    (folder / package).mkdir(parents=True)
    (folder / package / "__init__.py").write_text(PACKAGE)
    under, _, name = package.rpartition("/")
    place = f'"" = "{under}"' if name == "shapes" else f'shapes = "{package}"'
    where = f"[tool.setuptools.package-dir]\n{place}\n"
    (folder / "pyproject.toml").write_text(PYPROJECT + where)
    return folder


def run(agent: Agent, at: Path, *site_folders: str, path: str = "") -> list[list[object]]:
    at.mkdir(exist_ok=True)
    (at / "program.py").write_text(PROGRAM)
    package = str(Path(actorgrid.__file__).resolve().parents[1])
    done = subprocess.run(
        [sys.executable, str(at / "program.py"), str(agent.data_dir), *site_folders],
        cwd=at,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (path, package)))},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found: list[list[object]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("package", "by"), [("src/shapes", "__editable__.shapes-1.0.pth"), ("code/of_shapes", "__editable___*_finder.py")]
)
def test_an_editable_library_with_a_lock_is_imported_by_the_worker(
    shared_agent: Agent, tmp_path: Path, package: str, by: str
) -> None:
    prefix = tmp_path / "prefix"
    source = project(tmp_path / "project", package)
    pip("--prefix", str(prefix), "-e", str(source))
    folder = sysconfig.get_path("purelib", vars={"base": str(prefix), "platbase": str(prefix)})
    assert list(Path(folder).glob(by)), "installed in another way than this test is about"
    assert run(shared_agent, tmp_path / "work", folder) == [[9, True], [9, True]]


def test_what_pip_installed_to_a_target_with_the_pickler_beside_it_is_imported_by_the_worker(
    shared_agent: Agent, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    pip("--target", str(target), str(project(tmp_path / "project", "src/shapes")))
    pickler = Path(sysconfig.get_path("purelib")) / "cloudpickle"
    (target / "cloudpickle").symlink_to(pickler)
    assert run(shared_agent, tmp_path / "work", path=str(target)) == [[9, True], [9, True]]
