"""Python environments of work at full, under both kinds of agent: built as what the work is, once for its user."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.work.isolation.user_environments import environments_of
from actorgrid.actors.work.process_tree import descendants, living
from actorgrid.python_environment import python_environment
from actorgrid.transports.task_frames import ENVIRONMENT_HERE, encode_environment_wanted
from tests.wheels import make_wheel
from tests.work.apart_rig import ANN, BOB, check_as_nobody, level_of, rig_that_keeps_apart, said
from tests.work.hostile_jobs import HOSTILE, REFUSED
from tests.work.rig import RawClient, Rig

pytestmark = pytest.mark.system
is_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can start an agent that is another user, or give uids"
)


@is_root
def test_all_of_these_hold_for_an_agent_that_is_not_root() -> None:
    check_as_nobody(__file__)


rig = pytest.fixture(scope="module")(rig_that_keeps_apart)


@pytest.fixture(scope="module")
def index() -> Iterator[Path]:
    """A folder of packages that everybody can read."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    make_wheel(folder, "of_folder", "1.5", "VALUE = 42\n")
    yield folder
    shutil.rmtree(folder)


def environment(rig: Rig, index: Path, *requirements: str) -> str:
    """The digest of what a job asks for."""
    lines = ["--no-index", f"--find-links {index}", *requirements]
    spec = python_environment(requirements="\n".join(lines))
    rig.blob(spec.to_bytes())
    return spec.digest


USES = "import of_folder, sys, os; print(of_folder.VALUE, sys.prefix, os.stat(sys.prefix).st_uid == os.getuid())"


def test_an_environment_is_built_once_for_a_user_and_is_nobody_elses(rig: Rig, index: Path) -> None:
    digest, places = environment(rig, index, "of_folder>=1"), []
    for name, user in (("e1", ANN), ("e2", ANN), ("e3", BOB)):
        command = ["python", "-c", USES]
        job = rig.run(name, command=command, user_id=user, environment=digest, cwd=str(index))
        assert job["state"] == "succeeded", said(rig, f"{name}.1")
        assert level_of(rig, f"{name}.1") == "full"
        value, place, is_own = rig.output(f"{name}.1").split()
        assert (value, is_own) == ("42", "True")
        assert ("building environment" in rig.output(f"{name}.1", "stderr")) == (name != "e2")
        places.append(Path(place))
    assert places[0] == places[1] != places[2]
    assert all(place.is_relative_to(rig.paths.users_dir) for place in places)
    assert not rig.paths.environments_dir.exists() or not os.listdir(rig.paths.environments_dir)
    # What one has is not there for the other to be read, let alone to be changed.
    site = next(places[0].glob("lib/python*/site-packages")) / "of_folder.py"
    program = f"import os; print(os.path.exists({str(site)!r})); open({str(site)!r}, 'w')"
    job = rig.run("e4", command=["python3", "-c", program], user_id=BOB)
    assert job["state"] == "failed" and ("PermissionError" in said(rig, "e4.1") or "False" in said(rig, "e4.1"))
    assert site.read_text() == "VALUE = 42\n"


def test_a_function_goes_on_in_the_python_of_its_environment(rig: Rig, index: Path) -> None:
    def look() -> str:
        import sys

        import of_folder

        return f"{of_folder.VALUE} in {sys.prefix}"

    digest = environment(rig, index, "of_folder")
    rig.submit_function("fe", look, user_id=ANN, environment=digest, cwd=str(index))
    job = rig.run("fe")
    assert job["state"] == "succeeded", job["error"]
    assert level_of(rig, "fe.1") == "full"
    assert str(rig.paths.users_dir).encode() in rig.dir("fe.1").result.read_bytes()


BACKEND = """
import contextlib, io, json, os, sys, zipfile
FACTS = {facts!r}
def build_wheel(folder, config_settings=None, metadata_directory=None):
    sys.argv = ["hostile", FACTS]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec({program!r}, {{}})
    while {waits}:
        os.stat("/")
    name = "hostile_build-1-py3-none-any.whl"
    files = {{
        "hostile_build.py": "SAID = " + repr(said.getvalue()) + "; ENV = " + repr(dict(os.environ)),
        "hostile_build-1.dist-info/METADATA": "Metadata-Version: 2.1\\nName: hostile_build\\nVersion: 1\\n",
        "hostile_build-1.dist-info/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        "hostile_build-1.dist-info/RECORD": "",
    }}
    with zipfile.ZipFile(os.path.join(folder, name), "w") as archive:
        for each, text in files.items():
            archive.writestr(each, text)
    return name
"""


def make_hostile_package(index: Path, facts: str, waits: str) -> None:
    """A source package whose build tries all that hostile jobs try."""
    project = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    project += '[project]\nname = "hostile_build"\nversion = "1"\n'
    program = HOSTILE.replace("os.getppid()", "facts['agent']")  # its parent is the tool that builds, and its own
    files = {"pyproject.toml": project, "backend.py": BACKEND.format(facts=facts, program=program, waits=waits)}
    files["PKG-INFO"] = "Metadata-Version: 2.1\nName: hostile_build\nVersion: 1\n"
    with tarfile.open(index / "hostile_build-1.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(f"hostile_build-1/{name}")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))


def test_a_hostile_build_gets_no_further_than_its_job_and_one_that_is_killed_is_built_anew(
    rig: Rig, index: Path
) -> None:
    paths, bobs = rig.context.paths, environment(rig, index, "of_folder>=1")
    assert rig.run("bobs", command=["true"], user_id=BOB, environment=bobs, cwd=str(index))["state"] == "succeeded"
    uid = json.loads((paths.data_dir / "uids.json").read_text())[BOB] if os.geteuid() == 0 else 0
    facts = {
        "token": str(paths.token_file),
        "data": str(paths.data_dir),
        "sockets": str(paths.work_sockets_dir),
        "secret": str(environments_of(paths, uid, BOB) / bobs / "pyvenv.cfg"),
        "other": os.getpid(),
        "agent": os.getpid(),
        "mine": str(rig.dir("hb.2").path),
    }
    assert Path(facts["secret"]).exists()
    gate = index / "gate"
    make_hostile_package(index, json.dumps(facts), f"not os.path.exists({str(gate)!r})")
    digest = environment(rig, index, "hostile_build")
    shows = ["python", "-c", "import hostile_build; print(hostile_build.SAID.strip()); print(hostile_build.ENV)"]
    rig.submit("hb", command=shows, user_id=ANN, environment=digest, retries_left=1, cwd=str(index))
    first = rig.grant("hb")
    rig.node.run_until(lambda: "building environment" in rig.output(first, "stderr"), what="it is built")
    shim = rig.dir(first).shim_pid() or 0
    rig.node.run_until(lambda: len(living(descendants(shim))) > 2, what="its build runs")
    os.kill(shim, signal.SIGKILL)
    rig.ended(first)
    gate.touch()
    job = rig.run("hb")
    assert job["state"] == "succeeded", said(rig, "hb.2")
    tried, env = rig.output("hb.2").splitlines()
    went_through = {name: text for name, text in json.loads(tried).items() if text not in REFUSED}
    own = {"attempts": "['hb.2']", "control socket": "['doors']"} if os.geteuid() == 0 else {}
    assert went_through == own
    assert "ACTORGRID_CREDENTIAL_FILE" not in env


@is_root
def test_a_session_has_its_users_environments(rig: Rig, index: Path) -> None:
    digest = environment(rig, index, "of_folder")
    grant = rig.lease("L-env", session_id="env", user_id=ANN)
    with RawClient(grant) as client:
        client.welcome()
        spec = (rig.paths.blobs_dir / digest).read_bytes()
        client.socket.sendall(encode_environment_wanted(digest, spec))
        while ENVIRONMENT_HERE not in (frame := client.frame()):
            assert frame is not None, "the worker went on to nothing"
        assert client.call(of_environment).startswith(str(rig.paths.users_dir))
    rig.release("L-env")


def of_environment() -> str:
    import sys

    return sys.prefix


of_environment.__module__ = "__main__"


def test_work_of_the_default_tenant_that_asks_for_the_kernel_has_it_with_all_of_these(rig: Rig, index: Path) -> None:
    cwd = index / "cwd"
    make_wheel(cwd, "of_folder", "1.5", "VALUE = 42\n")
    cwd.chmod(0o777)
    fields: dict[str, Any] = {
        "resources": {"min_isolation": "files=kernel,processes=kernel"},
        "checkpoint": {"path": "ckpt"},
        "outputs": ["kept"],
        "environment": environment(rig, cwd, "of_folder"),
    }
    program = "import of_folder; open('kept', 'w').write(str(of_folder.VALUE))"
    job = rig.run("kernel", command=["python", "-c", program], user_id="ann", cwd=str(cwd), **fields)
    assert job["state"] == "succeeded", said(rig, "kernel.1")
    assert level_of(rig, "kernel.1") == "full"
    assert (rig.dir("kernel.1").outputs / "kept").read_text() == "42"
