"""What is handed out: its dependencies are those it imports, and its source holds nothing generated."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from .test_house import FOLDERS, PROJECT, ROOT, distribution

# Imported where it is there, by choice of the person whose work it is: no extra of ours.
BROUGHT_BY_USERS = {"torch"}
STARTED = {"uv", "tzdata"}  # programs and files that come as distributions: nothing of theirs is imported
# A distribution's modules, where the name alone does not say.
MODULES = {"pyyaml": "yaml", "python-dotenv": "dotenv", "nvidia-ml-py": "pynvml", "pillow": "PIL", "google-re2": "re2"}
MODULES |= {"grpcio": "grpc", "grpcio-reflection": "grpc_reflection", "grpcio-health-checking": "grpc_health"}
MODULES |= {"protobuf": "google"}
MODULES |= {"cuda-bindings": "cuda", "cupti-python": "cupti"}
MODULES |= dict.fromkeys(("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"), "opentelemetry")

# The extra is all that these are for: the process of the gRPC door looks whether it is there, and then loads them.
OF_AN_EXTRA = {f"actors/gateway/grpc_door/{name}.py" for name in ("calls", "translation", "door_tls")}
OF_AN_EXTRA |= {f"actorgrid/rpc/actorgrid_{name}.py" for name in ("pb2", "pb2_grpc")}


@cache
def imported(source: str) -> set[str]:
    """The top packages that are imported anywhere in it, ours and Python's own left out."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.split(".")[0])
    return found - set(sys.stdlib_module_names) - {"actorgrid"}


def product() -> set[str]:
    paths = [path for folder in (*FOLDERS, "actorgrid") for path in sorted((ROOT / folder).rglob("*.py"))]
    return set().union(*(imported(path.read_text()) for path in paths))


def modules(requirements: list[str]) -> set[str]:
    names = [distribution(line) for line in requirements]
    return {MODULES.get(name, name.replace("-", "_")) for name in names}


def test_everything_that_is_imported_is_declared_and_the_reverse() -> None:
    required = modules(PROJECT["dependencies"])
    extra = modules([line for lines in PROJECT["optional-dependencies"].values() for line in lines])
    # pydantic pins pydantic_core to the digit: a bound of our own could only disagree with it.
    assert product() - BROUGHT_BY_USERS - {"pydantic_core"} == (required | extra) - STARTED


def test_what_is_imported_where_a_module_loads_is_no_extra() -> None:
    extra = modules([line for lines in PROJECT["optional-dependencies"].values() for line in lines])
    for folder in (*FOLDERS, "actorgrid"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if str(path.relative_to(ROOT)) in OF_AN_EXTRA or not imported(path.read_text()) & (
                extra | BROUGHT_BY_USERS
            ):
                continue
            loaded = [
                node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)
            ]
            needed = set().union(*(imported(ast.unparse(node)) for node in loaded)) if loaded else set()
            assert not needed & (extra | BROUGHT_BY_USERS), path


def test_the_table_of_module_names_is_right() -> None:
    installed = packages_distributions()
    for name, module in MODULES.items():
        if module in installed:
            assert name in {distribution(each) for each in installed[module]}


def test_the_checks_above_see_imports_of_every_form() -> None:
    source = "import os, a.b\nfrom . import ours\nfrom c.d import e\ndef f():\n    import g as h\n"
    assert imported(source) == {"a", "c", "g"}


def test_metadata_says_who_for_whom_and_on_what() -> None:
    assert PROJECT["authors"] and PROJECT["keywords"]
    said = [re.fullmatch(r"Programming Language :: Python :: 3\.(\d+)", line) for line in PROJECT["classifiers"]]
    minors = [int(match.group(1)) for match in said if match]
    assert f">=3.{min(minors)}" == PROJECT["requires-python"]
    wheels = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]["build"].split()
    assert wheels == [f"cp3{minor}-*" for minor in minors]


@pytest.mark.timeout(300)  # without translated kernels beside the sources, this translates them
def test_the_source_distribution_holds_the_sources_and_nothing_generated(tmp_path: Path) -> None:
    copy = tmp_path / "tree"
    left_out = shutil.ignore_patterns(".*", "build", "dist", "tests", "docs", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=left_out)
    (copy / "hotpath" / "left_behind.c").write_text("/* of another day */")
    plain = {key: value for key, value in os.environ.items() if not key.startswith("ACTORGRID_")}
    command = [sys.executable, "setup.py", "--quiet", "sdist", "--formats=tar", "--dist-dir", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=copy, env=plain, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    (archive,) = (tmp_path / "out").iterdir()
    with tarfile.open(archive) as tar:
        held = {name.split("/", 1)[1] for name in tar.getnames() if "/" in name}
    assert not [name for name in held if name.endswith((".c", ".so", ".pyc"))]
    for kernel in (ROOT / "hotpath").glob("*.p[yx][xd]"):
        assert f"actorgrid/hotpath/{kernel.name}" in held
    assert {"setup.py", "pyproject.toml", "LICENSE", "actorgrid/configs/cluster.yaml"} <= held
