"""Workers of a tenant's sessions under a root agent: each is its user's from its start. One host is shared by all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from actorgrid.actors.work.isolation.probes import try_out
from tests.work.hostile_jobs import HOSTILE, REFUSED
from tests.work.rig import RawClient, Rig

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="only an agent that runs as root has other uids for work"),
]

ANN, BOB = "ann@lab", "bob@works"


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    if try_out().best != "full":
        pytest.skip(f"this host cannot keep work apart: {'; '.join(try_out().missing())}")
    around = Path(tempfile.mkdtemp())
    around.chmod(0o755)
    made = Rig(around / "data")
    made.context.paths.token_file.write_text("secret")
    made.start_manager()
    yield made
    made.close()
    shutil.rmtree(around)


def who() -> tuple[int, str, str, bool]:
    import os

    return os.getuid(), os.getcwd(), os.environ.get("USER", ""), os.path.exists(os.environ["ACTORGRID_CREDENTIAL_FILE"])


who.__module__ = "__main__"


def test_a_tenants_session_has_a_worker_of_its_users_own(rig: Rig) -> None:
    grants = {user: rig.lease(f"L-{user[:3]}", session_id=user, user_id=user) for user in (ANN, BOB, "own")}
    found = {}
    for user, grant in grants.items():
        with RawClient(grant) as client:
            client.welcome()
            uid, cwd, name, has_credential = found[user] = client.call(who)
            assert has_credential
            assert (uid != 0) == (user != "own")
            if uid:
                assert (name, cwd) == (user, str(rig.paths.workers_dir / grant["worker_id"] / "home"))
    assert len({uid for uid, *_ in found.values()}) == 3
    job = rig.run("j1", command=["sh", "-c", "id -u"], user_id=ANN)
    assert job["state"] == "succeeded" and int(rig.output("j1.1")) == found[ANN][0]
    for user in grants:
        rig.release(f"L-{user[:3]}")


def hostile(program: str, facts: str) -> str:
    import contextlib
    import io
    import sys

    sys.argv = ["hostile", facts]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(program, {})
    return said.getvalue()


hostile.__module__ = "__main__"


def test_nothing_that_a_hostile_task_of_a_tenants_session_tries_goes_through(rig: Rig) -> None:
    victim, own = (
        rig.lease("L-victim", session_id="v", user_id=BOB),
        rig.lease("L-hostile", session_id="h", user_id=ANN),
    )
    with RawClient(victim) as other, RawClient(own) as client:
        other.welcome()
        client.welcome()
        secret = rig.paths.workers_dir / victim["worker_id"] / "home" / "secret"
        other.call(secret.write_text, "mine")
        paths, mine = rig.context.paths, rig.paths.workers_dir / own["worker_id"]
        facts = {
            "token": str(paths.token_file),
            "data": str(paths.data_dir),
            "sockets": str(paths.work_sockets_dir / "doors"),
            "secret": str(secret),
            "other": other.call(os.getpid),
            "agent": os.getpid(),
            "mine": str(mine),
        }
        tried = json.loads(client.call(hostile, HOSTILE, json.dumps(facts)))
        assert {name: said for name, said in tried.items() if said not in REFUSED} == {}
        assert secret.read_text() == "mine" and not Path("/etc/actorgrid-was-here").exists()
        for path in ("lease.msgpack", f"credential-{'L-victim'}.json", "stdout", "spec.msgpack"):
            there = (mine if "victim" not in path else secret.parent.parent) / path
            with pytest.raises(Exception, match=r"Permission denied|No such file"):
                client.call(there.read_bytes)
        assert client.call(who)[0] != 0, "the next call runs"
    for lease_id in ("L-victim", "L-hostile"):
        rig.release(lease_id)


def test_a_worker_serves_its_session_again_and_nobody_elses(rig: Rig) -> None:
    first = rig.lease("L-a", session_id="a", user_id=ANN)
    with RawClient(first) as client:
        client.welcome()
        client.call(who)
    rig.release("L-a")
    rig.node.run_until(lambda: _state_of(rig, first["worker_id"]) == "idle", what="the worker to be idle")
    other = rig.lease("L-b", session_id="b", user_id=BOB)
    again = rig.lease("L-c", session_id="a", user_id=ANN)
    assert again["worker_id"] == first["worker_id"] != other["worker_id"]
    for lease_id in ("L-b", "L-c"):
        rig.release(lease_id)


def _state_of(rig: Rig, worker_id: str) -> str:
    assert rig.manager is not None
    return next((each.state for each in rig.manager._leases.workers() if each.worker_id == worker_id), "gone")


def test_a_killed_agents_next_start_finds_whose_worker_it_is(rig: Rig) -> None:
    before = rig.lease("L-r", session_id="r", user_id=ANN)
    rig.kill_manager()
    rig.start_manager()
    grant = rig.attach("L-r")
    assert grant["worker_id"] == before["worker_id"]
    with RawClient(grant) as client:
        client.welcome()
        assert client.call(who)[0] != 0
    rig.release("L-r")


def test_where_all_work_is_kept_apart_sessions_of_the_default_tenant_are_too(tmp_path: Path) -> None:
    around = Path(tempfile.mkdtemp())
    around.chmod(0o755)
    strict = Rig(around / "data", work__isolation="full")
    try:
        strict.start_manager()
        with RawClient(strict.lease("L1", user_id="me")) as client:
            client.welcome()
            assert client.call(os.getuid) != 0
    finally:
        strict.close()
        shutil.rmtree(around)
