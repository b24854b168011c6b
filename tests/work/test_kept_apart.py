"""Hostile jobs under the real shim: each ends in a refusal, and the next job runs. One host is shared by all."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.work import attempt_specs
from actorgrid.actors.work.isolation.probes import try_out
from tests.work.disk_floods import check_disk_floods
from tests.work.floods import check_floods
from tests.work.hostile_jobs import HOSTILE, REFUSED, STUB_NODES
from tests.work.rig import Rig, wait_for
from tests.work.sent_directory import check_sent_directory

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="only an agent that runs as root has other uids for work"),
]

ANN, BOB, OWN = "ann@lab", "bob@works", "root-of-default"


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    if try_out().best != "full":
        pytest.skip(f"this host cannot keep work apart: {'; '.join(try_out().missing())}")
    around = Path(tempfile.mkdtemp())
    around.chmod(0o755)  # others may enter it, as they may most directories
    made = Rig(around / "data")
    made.context.paths.token_file.write_text("secret")
    made.start_manager()
    yield made
    made.close()
    shutil.rmtree(around)


LISTS_DOORS = """
import os, sys
try:
    print(os.listdir(sys.argv[1]))
except OSError as error:
    print(type(error).__name__)
"""


def run(rig: Rig, name: str, program: str, *arguments: str, user: str, **fields: Any) -> str:
    job = rig.run(name, command=["python3", "-c", textwrap.dedent(program), *arguments], user_id=user, **fields)
    assert job["state"] == "succeeded", job["error"]
    return rig.output(f"{name}.1")


def facts_of(rig: Rig, name: str, other: int, secret: Path) -> str:
    paths = rig.context.paths
    return json.dumps(
        {
            "token": str(paths.token_file),
            "data": str(paths.data_dir),
            "sockets": str(paths.work_sockets_dir),
            "secret": str(secret),
            "other": other,
            "agent": os.getpid(),
            "mine": str(rig.dir(f"{name}.1").path),
        }
    )


def test_nothing_that_a_hostile_job_of_a_tenant_tries_goes_through(rig: Rig) -> None:
    waits = ["sh", "-c", "echo mine > $HOME/secret; echo up; exec sleep 600"]
    rig.submit("victim", command=waits, user_id=BOB, env={"SECRET": "bobs"})
    rig.running(rig.grant("victim"))
    wait_for(lambda: [rig.node.step(0.05), "up" in rig.output("victim.1")][1], what="the victim to be up")
    (pid,) = [each for each in rig.marked("victim.1") if b"sleep" in Path(f"/proc/{each}/cmdline").read_bytes()]
    secret = rig.dir("victim.1").path / "home" / "secret"
    assert secret.exists()
    tried = json.loads(run(rig, "hostile", HOSTILE, facts_of(rig, "hostile", pid, secret), user=ANN))
    went_through = {name: said for name, said in tried.items() if said not in REFUSED}
    # Of the sockets it sees its uid's own folder, in which the agent's doors are, and no list of those.
    assert went_through == {"attempts": "['hostile.1']", "control socket": "['doors']"}
    assert run(rig, "doors", LISTS_DOORS, str(rig.paths.work_sockets_dir / "doors"), user=ANN) == "PermissionError\n"
    assert not Path("/etc/actorgrid-was-here").exists()
    assert os.stat(f"/proc/{pid}").st_uid != 0
    os.kill(pid, signal.SIGKILL)
    rig.ended("victim.1")
    assert run(rig, "next", "print('runs')", user=ANN) == "runs\n"


def test_a_job_of_the_default_tenant_does_not_come_across_the_agents_keys(rig: Rig, tmp_path: Path) -> None:
    program = """
    import json, os, sys
    facts = json.loads(sys.argv[1])
    print(open(facts["token"]).read() == "", os.listdir(facts["data"] + "/ledger"), os.getuid(), os.getcwd())
    open("made", "w")
    """
    said = run(rig, "own", program, facts_of(rig, "own", 1, tmp_path), user="ann", cwd=str(tmp_path))
    assert said == f"True [] 0 {tmp_path}\n"
    assert (tmp_path / "made").stat().st_uid == 0


def test_a_tenants_users_have_a_uid_each_and_keep_it(rig: Rig) -> None:
    program = "import os; print(os.getuid(), os.environ['HOME'], os.path.exists('/tmp/theirs'))"
    program += "; open('/tmp/theirs', 'w'); open('/dev/shm/theirs', 'w')"
    first, again = run(rig, "a1", program, user=ANN), run(rig, "a2", program, user=ANN)
    other = run(rig, "b1", program, user=BOB)
    assert first.split()[0] == again.split()[0] != other.split()[0]
    assert again.split()[2] == "False"
    assert not (rig.dir("a1.1").path / "home").exists()


def test_a_function_of_a_tenant_runs_as_its_uid_and_its_result_is_taken(rig: Rig) -> None:
    def who() -> tuple[int, bool]:
        import os

        return os.getuid(), os.path.exists(os.environ["ACTORGRID_CREDENTIAL_FILE"])

    rig.submit_function("f", who, user_id=ANN)
    job = rig.run("f")
    assert job["state"] == "succeeded", job["error"]
    assert rig.dir("f.1").result.exists()


def test_output_may_be_opened_by_name_and_the_folder_named_must_be_ones_own(rig: Rig, tmp_path: Path) -> None:
    assert run(rig, "named", "open('/dev/stdout', 'w').write('by name')", user=ANN) == "by name"
    tmp_path.chmod(0o700)
    job = rig.run("shut", command=["true"], user_id=ANN, cwd=str(tmp_path))
    assert (job["state"], job["error"]["code"]) == ("failed", "IsolationNotGiven")


def test_a_credential_that_is_written_anew_stays_the_works_to_read(rig: Rig) -> None:
    program = """
    import json, os, time
    path = os.environ["ACTORGRID_CREDENTIAL_FILE"]
    print("up", flush=True)
    while json.load(open(path))["url"] != "https://moved":
        time.sleep(0.01)
    print("read", os.stat(path).st_mode & 0o777 == 0o600, os.stat(path).st_uid == os.getuid())
    """
    rig.submit("moved", command=["python3", "-c", textwrap.dedent(program)], user_id=ANN)
    rig.grant("moved")
    wait_for(lambda: [rig.node.step(0.05), "up" in rig.output("moved.1")][1], what="the job to be up")
    assert rig.manager is not None
    rig.manager._credentials.moved("https://moved")
    rig.ended("moved.1")
    assert rig.output("moved.1") == "up\nread True True\n"


def test_a_directory_around_the_data_directory_does_not_uncover_it(rig: Rig) -> None:
    around = rig.paths.data_dir.parent
    program = "import os, sys; print(os.getcwd(), os.listdir(os.environ['HOME']), os.path.exists(sys.argv[1]))"
    said = run(rig, "around", program, str(rig.paths.data_dir / "uids.json"), user=ANN, cwd=str(around))
    assert said == f"{around} [] False\n"


def test_a_directory_that_was_sent_is_a_copy_of_its_own(rig: Rig) -> None:
    check_sent_directory(rig, ANN)


def test_floods_and_flights_end_in_a_limit_and_the_next_job_runs(rig: Rig) -> None:
    check_floods(rig, ANN)


def test_floods_of_the_disk_end_by_name_and_the_next_job_runs(rig: Rig) -> None:
    check_disk_floods(rig, ANN)


def test_a_gpu_that_was_not_granted_cannot_be_opened_by_roots_work_either(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not try_out().has("cgroup_devices") or rig.manager is None or rig.manager._zygote.containment.kind != "cgroup":
        pytest.skip("no device filter here")
    monkeypatch.setattr(attempt_specs, "denied_nodes", lambda *_: [(195, 1)])  # as of a host with two GPUs
    nodes = [tmp_path / f"nvidia{minor}" for minor in (0, 1)]
    for minor, path in enumerate(nodes):
        os.mknod(path, 0o20666, os.makedev(195, minor))
    granted, other = run(rig, "gpu", STUB_NODES, *map(str, nodes), user="ann").split()
    assert int(granted) == errno.ENXIO and int(other) == errno.EPERM


def test_shared_memory_of_its_own_counts_as_its_memory_and_is_bounded(rig: Rig) -> None:
    fills = """
    import os, time
    out = open("/dev/shm/flood", "wb", 0)
    for _ in range(512):
        out.write(bytes(2**20))
    print("filled", flush=True)
    time.sleep(600)
    """
    command = ["python3", "-c", textwrap.dedent(fills)]
    job = rig.run("shm", command=command, user_id=ANN, resources={"memory_mib": 64})
    # As large as the memory it asked for, the file system is full; with what the program itself takes, that is more.
    assert job["state"] == "failed" and job["error"]["code"] in ("MemoryLimitExceeded", "TaskFailed"), job["error"]
    assert "filled" not in rig.output("shm.1")
    assert run(rig, "after-shm", "print('runs')", user=ANN) == "runs\n"
