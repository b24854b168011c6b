"""Python environments are built once a host, also of a folder's wheels; builds that fail leave nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from actorgrid.actors.work import built_environments, environment_tools
from actorgrid.actors.work.built_environments import BuildProgress, BuiltEnvironments, _run
from actorgrid.actors.work.environment_tools import find_interpreter, find_uv, without_passwords
from actorgrid.actors.work.python_switch import COMPILED, OWN, own_folder
from actorgrid.errors import DiskFull, EnvironmentFailed, MalformedBody, TaskCancelled
from actorgrid.python_environment import PythonEnvironment, environment_of_bytes, python_environment
from tests.wheels import make_wheel

WORK = {"PATH": os.environ.get("PATH", os.defpath), "HOME": os.environ.get("HOME", "/")}

NOBODY = BuildProgress()


@pytest.fixture
def kept(tmp_path: Path) -> BuiltEnvironments:
    return BuiltEnvironments(tmp_path / "environments", 2, 2**30, 120.0)


def wanted(folder: Path, *requirements: str) -> PythonEnvironment:
    return python_environment(requirements="\n".join(["--no-index", f"--find-links {folder}", *requirements]))


def build(kept: BuiltEnvironments, spec: PythonEnvironment, progress: BuildProgress = NOBODY) -> Path:
    held = kept.hold(spec.digest)
    try:
        return Path(kept.get(spec.digest, spec.to_bytes, WORK, progress).python)
    finally:
        os.close(held)


def said_by(python: Path, code: str) -> str:
    return subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("tool", ["uv", "pip"])
def test_packages_of_a_folder_are_built_once_without_a_network(
    kept: BuiltEnvironments, tmp_path: Path, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tool == "pip":
        monkeypatch.setattr(built_environments, "find_uv", lambda _path: None)
    assert find_uv(WORK["PATH"]) is not None, "the tests' environment has it"
    make_wheel(tmp_path / "index", "of_folder", "1.5", "VALUE = 42\n")
    lines: list[str] = []
    spec = wanted(tmp_path / "index", "of_folder>=1")
    python = build(kept, spec, BuildProgress(lines.append))
    assert said_by(python, "import of_folder; print(of_folder.VALUE)") == "42"
    assert lines[0].startswith(f"building environment {spec.digest[:12]} with {tool}") and "1 packages" in lines[-1]
    (facts,) = kept.facts()
    assert (facts.state, facts.packages) == ("ready", ("of_folder==1.5",)) and facts.size_bytes > 0
    (tmp_path / "index" / "of_folder-1.5-py3-none-any.whl").unlink()
    again: list[str] = []
    assert build(kept, spec, BuildProgress(again.append)) == python and again == []
    # What all that use it share is not added to by one of them.
    site = next(python.parents[1].glob("lib/python*/site-packages"))
    assert site.stat().st_mode & 0o222 == 0


def test_of_many_who_ask_at_once_one_builds_and_the_others_wait(kept: BuiltEnvironments, tmp_path: Path) -> None:
    make_wheel(tmp_path / "index", "of_folder", "1", "")
    spec, said, found = wanted(tmp_path / "index", "of_folder"), [], []

    def ask() -> None:
        found.append(build(kept, spec, BuildProgress(said.append)))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1 and len(found) == 4
    assert sum(line.startswith("building environment") for line in said) == 1


def test_a_build_that_fails_says_what_the_tool_said_and_leaves_nothing(kept: BuiltEnvironments, tmp_path: Path) -> None:
    make_wheel(tmp_path / "index", "of_folder", "1", "", requires="absent-package")
    spec = wanted(tmp_path / "index", "of_folder")
    with pytest.raises(EnvironmentFailed, match="absent-package"):
        build(kept, spec)
    assert kept.found(spec.digest) is None and not kept.path(spec.digest).exists()
    (facts,) = kept.facts()
    assert facts.state == "left" and facts.last_line
    # And what was missing has come meanwhile.
    make_wheel(tmp_path / "index", "absent_package", "2", "")
    assert "python" in build(kept, spec).name


def test_what_a_killed_builder_left_is_built_anew(kept: BuiltEnvironments, tmp_path: Path) -> None:
    make_wheel(tmp_path / "index", "of_folder", "1", "VALUE = 7\n")
    spec = wanted(tmp_path / "index", "of_folder")
    half = kept.path(spec.digest) / "bin"
    half.mkdir(parents=True)
    (half / "python").write_text("half of one")
    assert kept.found(spec.digest) is None
    assert said_by(build(kept, spec), "import of_folder; print(of_folder.VALUE)") == "7"


def test_one_whose_interpreter_is_gone_is_not_taken_for_there(kept: BuiltEnvironments, tmp_path: Path) -> None:
    spec = python_environment()
    python = build(kept, spec)
    assert kept.found(spec.digest) is not None
    python.unlink()
    assert kept.found(spec.digest) is None
    assert build(kept, spec).exists()


def test_beyond_the_most_the_one_used_longest_ago_goes_but_none_in_use(kept: BuiltEnvironments, tmp_path: Path) -> None:
    specs = []
    for number in range(3):
        make_wheel(tmp_path / "index", f"of_folder_{number}", "1", "")
        specs.append(wanted(tmp_path / "index", f"of-folder-{number}"))
    held = kept.hold(specs[0].digest)
    build(kept, specs[0])
    build(kept, specs[1])
    os.utime(kept._lock(specs[0].digest), (1, 1))
    build(kept, specs[2])
    assert [kept.found(spec.digest) is not None for spec in specs] == [True, False, True]
    assert not kept.clear(specs[0].digest), "it is held"
    os.close(held)
    assert kept.clear(specs[0].digest) and kept.found(specs[0].digest) is None


def test_one_larger_than_all_may_be_together_is_refused(tmp_path: Path) -> None:
    make_wheel(tmp_path / "index", "of_folder", "1", f"VALUE = {'x' * 3000!r}\n")
    small = BuiltEnvironments(tmp_path / "environments", 2, 2048, 120.0)
    spec = wanted(tmp_path / "index", "of_folder")
    with pytest.raises(DiskFull, match="no room"):
        build(small, spec)
    assert not small.path(spec.digest).exists()


def test_a_build_that_takes_too_long_or_is_not_wanted_any_more_is_ended(tmp_path: Path) -> None:
    slow = [sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(600)"]
    heard: list[str] = []
    with pytest.raises(EnvironmentFailed, match="too long"):
        _run(slow, os.environ, heard.append, lambda: True, 1.0, tmp_path)
    heard.clear()
    with pytest.raises(TaskCancelled):
        _run(slow, os.environ, heard.append, lambda: not heard, 60.0, tmp_path)
    with pytest.raises(DiskFull):
        _run(
            [sys.executable, "-c", "print('OSError: No space left on device'); raise SystemExit(2)"],
            os.environ,
            heard.append,
            lambda: True,
            60.0,
            tmp_path,
        )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b"null",
        b'{"v":2,"python":"","requirements":""}',
        b'{"v":1,"python":"2.7","requirements":""}',
        b'{"v":1,"python":3,"requirements":""}',
        json.dumps({"v": 1, "python": "", "requirements": "a" * (2 * 2**20 + 1)}).encode(),
        json.dumps({"v": 1, "python": "/a\0b", "requirements": ""}).encode(),
    ],
)
def test_a_spec_that_is_none_is_refused_by_name(data: bytes) -> None:
    with pytest.raises(MalformedBody):
        environment_of_bytes(data)


def test_a_spec_of_another_digest_is_not_built(kept: BuiltEnvironments) -> None:
    with pytest.raises(MalformedBody, match="not of that digest"):
        kept.get("0" * 64, python_environment().to_bytes, WORK, BuildProgress())


def test_a_python_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed, match=r"no Python 3\.99"):
        find_interpreter(python_environment("3.99"), WORK["PATH"])
    with pytest.raises(EnvironmentFailed, match="no CPython at that path"):
        find_interpreter(python_environment(str(tmp_path / "python")), WORK["PATH"])
    assert find_interpreter(python_environment(sys.executable), "")[0] == sys.executable


def test_an_interpreter_named_alone_is_taken_as_it_is(kept: BuiltEnvironments) -> None:
    spec = python_environment(sys.executable)
    found = kept.get(spec.digest, spec.to_bytes, WORK, BuildProgress())
    assert found.python == sys.executable and not kept.path(spec.digest).exists()
    assert found.variables({"PATH": "/bin"})["PATH"] == f"{os.path.dirname(sys.executable)}:/bin"


def test_uv_is_told_where_pip_takes_packages_from_unless_it_knows_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://a.example/simple\nno-index = false\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_FIND_LINKS", "/wheels /more")
    monkeypatch.setenv("HOME", str(tmp_path))
    words = environment_tools._of_pip(python_environment(requirements="six"))
    assert "https://a.example/simple" in words and words[-4:] == ["--find-links", "/wheels", "--find-links", "/more"]
    assert environment_tools._of_pip(python_environment(requirements="--no-index\nsix")) == []
    monkeypatch.setenv("UV_INDEX_URL", "https://b.example/simple")
    assert environment_tools._of_pip(python_environment(requirements="six")) == []


def test_passwords_in_urls_are_not_shown() -> None:
    assert without_passwords("get https://me:secret@a.example/simple now") == "get https://***@a.example/simple now"


def test_what_a_worker_imports_is_in_its_own_folder_and_nothing_else_is(tmp_path: Path) -> None:
    here = own_folder(tmp_path, ".".join(map(str, sys.version_info[:2])))
    assert own_folder(tmp_path, ".".join(map(str, sys.version_info[:2]))) == here
    assert sorted(path.name for path in here.iterdir()) == sorted(OWN)
    other = own_folder(tmp_path, "3.99")
    assert {path.name for path in other.iterdir()} == {*OWN, *(f"{name}.py" for name in COMPILED)} - {*COMPILED}
    # In a Python with no distributions at all, a worker loads: of this version, and with the stubs of another.
    bare = python_environment()
    python = build(BuiltEnvironments(tmp_path / "environments", 2, 2**30, 120.0), bare)
    for folder in (here, other):
        code = (
            f"import sys; sys.path.insert(0, {str(folder)!r})\n"
            "from actorgrid.actors.work import python_switch, worker, worker_process, function_job, function_server\n"
            "import actorgrid, setproctitle; actorgrid.Client\nprint('loaded')"
        )
        assert said_by(python, code) == "loaded"
