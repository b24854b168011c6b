"""Graphs of tenants' users on two real hosts: steps are kept apart as jobs are, and give what they give elsewhere.

By root they have uids; as another user, for whom the first test runs the others, Landlock keeps them in.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import actorgrid
from actorgrid import Dag, errors
from actorgrid.actors.work.environment import ATTEMPT_NUMBER, JOB_ID
from actorgrid.actors.work.isolation.probes import SHUT_IN_NEEDS, try_out
from actorgrid.client.workflow import workflow_dag
from tests.processes import until
from tests.system.agent import closing_all
from tests.system.cluster_host import ClusterHost, Two
from tests.work.hostile_jobs import HOSTILE, REFUSED
from tests.work.hostile_outputs import hostile_outputs

pytestmark = pytest.mark.system
WAIT_S = 120.0
IS_ROOT = os.geteuid() == 0


@pytest.mark.skipif(not IS_ROOT, reason="the tests below run by themselves where we are not root")
def test_all_of_these_hold_for_a_user_that_is_not_root() -> None:
    missing = [name for name in SHUT_IN_NEEDS if not try_out().has(name)]
    if missing:
        pytest.skip(f"this kernel has no {', '.join(missing)}")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "system", __file__]
        launcher = [sys.executable, "-m", "tests.unprivileged", *command, f"--basetemp={folder}/tests"]
        root = Path(__file__).resolve().parents[2]
        run = subprocess.run(launcher, env={**os.environ, "TMPDIR": folder}, cwd=root, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert " passed" in run.stdout


@pytest.fixture(scope="module")
def around() -> Iterator[Path]:
    """A folder that all users may enter, as they may most."""
    made = Path(tempfile.mkdtemp())
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def two_hosts(around: Path) -> Iterator[Two]:
    if try_out().best != "full":
        pytest.skip(f"this host cannot keep work apart: {'; '.join(try_out().missing())}")
    first, second = (ClusterHost(around / name, "simulated:1xH100-80GB") for name in ("first", "second"))
    with closing_all((first, second)):
        first.found()
        second.join(first, first.token()["token"])
        until(lambda: first.roles() == second.roles() == {1: "leader", 2: "learner"}, "both know both")
        until(lambda: len(first.cli_json("gpus")["gpus"]) == 2, "all devices are known")
        yield first, second


def client_of(host: ClusterHost, user: str, tenant: str) -> actorgrid.Client:
    made = host.cli_json("key", "create", "--user", user, "--role", "user", "--tenant", tenant)
    return actorgrid.connect(made["url"], made["key"], ca_fingerprint=made["ca_fingerprint"])


@pytest.fixture(scope="module")
def ann(two_hosts: Two) -> Iterator[actorgrid.Client]:
    with client_of(two_hosts[0], "ann", "lab") as client:
        yield client


@pytest.fixture
def named(around: Path) -> Iterator[Path]:
    """A directory that is everybody's, which work may name as its own."""
    folder = around / "named"
    folder.mkdir()
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def host_ids(host: ClusterHost) -> list[str]:
    found = host.hosts()
    return [str(found[node]["node_id"]) for node in sorted(found)]


# -- ordinary graphs


def inc(x: int) -> int:
    return x + 1


def level() -> str:
    """How the process that runs this is kept: at full it comes to nobody else's attempts."""
    attempts = Path(os.environ["ACTORGRID_CREDENTIAL_FILE"]).parent.parent
    try:
        return "full" if len(os.listdir(attempts)) <= 1 else "basic"
    except OSError:
        return "full"


def numbers(count: int) -> Iterator[int]:
    yield from range(count)


def search(depth: int, x: int) -> Any:
    if depth == 0:
        return x
    dag = Dag()
    found = [dag.add(search, depth - 1, 2 * x + side, extends=True, id=f"s{side}") for side in (0, 1)]
    dag.add(sorted, found, id="both")
    return actorgrid.extend(dag, x)


def trial(rate: float) -> float:
    value = rate
    for step in range(1, 4):
        value = rate + 1 / step
        actorgrid.report(step=step, metric=value)
    return value


def stumbles() -> str:
    number = os.environ[ATTEMPT_NUMBER]
    if number == "1":
        raise RuntimeError("the first time")
    return number


def upper(files: actorgrid.StepFiles) -> dict[str, str]:
    return {path: content.decode().upper() for path, content in files.items()}


def ordinary(hosts: list[str]) -> Dag:
    """A graph with all kinds of steps, over two hosts."""
    first, second = hosts
    dag = Dag("ordinary", cache="inputs")
    value = dag.value(list(range(5)))
    pair = dag.add(divmod, dag.inline(sum, value), 4, id="pair", node=first)
    dag.add(inc, pair[1], id="rest", node=second)
    dag.add(sum, [dag.add(inc, number) for number in range(40)], id="all")
    items = dag.add(numbers, 300, stream=True, cache=False, node=first)
    dag.add(sum, items, id="items", cache=False, node=second)
    dag.add(search, 2, 1, extends=True, cache=False, id="root")
    dag.loop(inc, 10, until=lambda found: found >= 13, rounds=5, id="count")
    dag.add(min, list(dag.sweep(trial, rate=[1.0, 2.0], options={"cache": False}).values()), id="best", cache=False)
    dag.add(stumbles, retries=2, cache=False, id="again")
    line = "mkdir d; echo made >d/a; ln -s a d/b; echo yes"
    made = dag.run(["sh", "-c", line], outputs=["d"], id="made", node=first)
    with dag.when(made, "yes"):
        line = "cat d/a d/b >twice"
        twice = dag.run(["sh", "-c", line], inputs=made, outputs=["twice"], id="twice", node=second)
    dag.add(upper, twice, id="upper", node=first)
    dag.add(level, cache=False, id="level", collocated=twice)
    return dag


def test_a_graph_gives_the_same_at_full_as_at_basic(two_hosts: Two, ann: actorgrid.Client) -> None:
    hosts = host_ids(two_hosts[0])
    found = [client.dag(ordinary(hosts)).result(WAIT_S) for client in (ann, two_hosts[0].client())]
    assert [each.pop("level") for each in found] == ["full", "basic"]
    assert found[0] == found[1]
    assert found[0]["upper"] == {"twice": "MADE\nMADE\n"} and found[0]["items"] == sum(range(300))
    again = ann.dag(ordinary(hosts))
    assert again.result(WAIT_S) == {**found[0], "level": "full"}
    steps = {step["id"]: step for step in again.steps()}
    assert all("cached_from" in steps[id] for id in ("pair", "rest", "all", "made", "twice", "upper"))


def test_a_traced_workflow_gives_the_same_at_full_as_at_basic(two_hosts: Two, ann: actorgrid.Client) -> None:
    path = Path(__file__).parents[1] / "dag" / "workflows" / "epigenomics-chameleon-hep-1seq-100k-001.json"
    document = json.loads(path.read_text())
    found = []
    for client in (ann, two_hosts[0].client()):
        run = client.dag(workflow_dag(document, time_scale=0.001, bytes_scale=0.01))
        found.append({id: len(value) for id, value in run.result(WAIT_S).items()})
        assert set(run.states) == {"succeeded"}
    assert found[0] == found[1] and sum(found[0].values()) > 10_000


def test_a_directory_that_is_named_is_read_and_written_by_its_uid(
    two_hosts: Two, ann: actorgrid.Client, named: Path
) -> None:
    (first, _) = host_ids(two_hosts[0])
    (named / "other").mkdir()
    (named / "other").chmod(0o777)

    def graph() -> Dag:
        dag = Dag("named", cache="inputs")
        one = dag.run(["sh", "-c", "echo one >one"], cwd=named, outputs=["one"], node=first, id="one")
        two = dag.run(["sh", "-c", "cat one >two"], cwd=named / "other", inputs=one, outputs=["two"], node=first)
        dag.add(upper, two, id="upper", node=first)
        return dag

    assert ann.dag(graph()).result(WAIT_S) == {"upper": {"two": "ONE\n"}}
    assert (named / "other" / "one").stat().st_uid == (named / "one").stat().st_uid
    assert not IS_ROOT or (named / "one").stat().st_uid != 0
    (named / "other" / "two").unlink()
    run = ann.dag(graph())
    assert run.result(WAIT_S) == {"upper": {"two": "ONE\n"}}
    assert all("cached_from" in step for step in run.steps()) and (named / "other" / "two").exists()
    if IS_ROOT:
        dag = Dag("roots")
        taken = dag.run(["sh", "-c", "echo one >one"], outputs=["one"], node=first)
        dag.run(["true"], cwd=named / "..", inputs=taken, node=first)
        with pytest.raises(errors.StepFailed):
            ann.dag(dag).result(WAIT_S)
        assert not (named.parent / "one").exists()


def test_a_graph_begun_again_goes_on_from_what_it_has(two_hosts: Two, ann: actorgrid.Client, named: Path) -> None:
    (first, _) = host_ids(two_hosts[0])
    dag = Dag("again")
    made = dag.run(["sh", "-c", "echo made >made"], outputs=["made"], node=first)
    dag.run(["test", "-e", "flag", "-a", "-e", "made"], cwd=named, inputs=made, id="last", node=first)
    run = ann.dag(dag)
    with pytest.raises(errors.StepFailed):
        run.result(WAIT_S)
    (named / "flag").touch()
    assert run.retry()["again"] == 1
    assert run.wait(WAIT_S)["state"] == "succeeded"


def asks() -> tuple[str, dict[str, str]]:
    """How this step is kept, and what is said of that."""
    with actorgrid.connect() as client:
        job = client.http.get(f"/api/jobs/{os.environ[JOB_ID]}")
    return level(), job["enforced_by"]


def test_what_is_asked_of_steps_is_taken_and_told(two_hosts: Two, ann: actorgrid.Client) -> None:
    for client, least in ((ann, ""), (ann, "kernel"), (two_hosts[0].client(), "kernel")):
        dag = Dag("asks")
        dag.add(asks, **({"min_isolation": least} if least else {}), id="asks")
        dag.run(["true"], min_isolation="kernel", id="command")
        kept, enforced = client.dag(dag).result(WAIT_S)["asks"]
        assert (kept, enforced["files"], enforced["processes"]) == ("full", "kernel", "kernel")


# -- hostile ones


def gives_secret() -> str:
    return "bobs"


def reads(paths: list[str], folders: list[str], *_: Any) -> dict[str, str]:
    """What became of reading these."""
    found = {}
    for path in (*paths, *folders):
        try:
            found[path] = str(os.listdir(path) if path in folders else Path(path).read_bytes())[:200]
        except OSError as error:
            found[path] = type(error).__name__
    return found


def test_a_step_comes_to_nothing_of_anothers_graph_nor_of_the_agent(two_hosts: Two, ann: actorgrid.Client) -> None:
    first, second = two_hosts
    ids = host_ids(first)
    with client_of(first, "bob", "works") as bob:
        dag = Dag("bobs")
        secret = dag.add(gives_secret, node=ids[0])
        dag.add(inc, dag.add(len, secret, node=ids[1]), id="length", node=ids[1])
        made = dag.run(["sh", "-c", "echo bobs >out"], outputs=["out"], node=ids[1])
        dag.add(upper, made, node=ids[0], id="upper")
        theirs = bob.dag(dag)
        theirs.result(WAIT_S)
        steps = theirs.steps()
    paths, folders = [], []
    for host in (first, second):
        data = host.data_dir
        attempts = [data / "attempts" / step["attempt_id"] for step in steps if step["attempt_id"]]
        theirs_here = [path for path in data.rglob("*") if path.is_file() and b"bobs" in path.read_bytes()]
        assert theirs_here, "there is something to find"
        paths += [str(path) for path in (*theirs_here, *(each / "result.bin" for each in attempts))]
        paths += [str(path) for path in (data / "admin.token", data / "work.key", data / "security" / "host.pem")]
        folders += [str(path) for path in (*attempts, data / "attempts", data / "blobs", data / "ledger", data)]
    for node in ids:
        dag = Dag("spies")
        own = dag.add(inc, 1, node=node)
        dag.add(reads, paths, folders, own, node=node, id="function")
        found = ann.dag(dag).result(WAIT_S)["function"]
        went_through = {path: said for path, said in found.items() if said not in REFUSED}
        # Where there are mounts, it lists those that were made for it.
        assert all(path.endswith(("attempts", "blobs", "first", "second")) for path in went_through), went_through
        assert not any(step["attempt_id"] in said for step in steps for said in went_through.values())
    with pytest.raises(errors.UnknownJob):
        ann.graph(theirs.id).result(1)


def test_the_hostile_job_does_as_little_as_a_step(two_hosts: Two, ann: actorgrid.Client) -> None:
    host = two_hosts[0]
    (first, _) = host_ids(host)
    assert host.process is not None
    facts = {
        "token": str(host.data_dir / "admin.token"),
        "data": str(host.data_dir),
        "sockets": str(host.data_dir / "none"),
        "secret": "/etc/shadow",
        "other": host.process.pid,
        "agent": host.process.pid,
        "mine": str(host.data_dir / "attempts" / "hostile.1-1.1"),
    }
    dag = Dag("hostile", id="hostile")
    taken = dag.run(["sh", "-c", "echo x >out"], outputs=["out"], node=first)
    dag.run(["python3", "-c", HOSTILE, json.dumps(facts)], inputs=taken, node=first, id="hostile")
    run = ann.dag(dag)
    assert run.wait(WAIT_S)["state"] == "succeeded"
    step = next(each for each in run.steps() if each["id"] == "hostile")
    assert step["attempt_id"] == "hostile.1-1.1"
    tried = json.loads(host.cli("logs", step["job_id"]).stdout)
    went_through = {name: said for name, said in tried.items() if said not in REFUSED}
    assert went_through == ({"attempts": "['hostile.1-1.1']"} if IS_ROOT else {})
    assert list(ann.dag(_one()).result(WAIT_S).values()) == [2]


def _one() -> Dag:
    dag = Dag("next")
    dag.add(inc, 1)
    return dag


def test_hostile_outputs_give_nothing_away_and_the_next_graph_runs(
    two_hosts: Two, ann: actorgrid.Client, around: Path, named: Path
) -> None:
    ids = host_ids(two_hosts[0])
    (around / "shut").mkdir(exist_ok=True)
    secret = around / "shut" / "secret"
    secret.write_text("top secret")
    secret.chmod(0o600)
    for place in ({}, {"cwd": named}):
        for hostile in hostile_outputs(secret):
            dag = Dag("outputs")
            line = f"rm -rf d out more; {hostile.command}"
            made = dag.run(["sh", "-c", line], outputs=hostile.outputs, node=ids[0], id="made", **place)
            dag.add(upper, made, node=ids[1], id="upper")
            run = ann.dag(dag)
            if hostile.is_refused:
                with pytest.raises(errors.StepFailed) as failed:
                    run.result(WAIT_S)
                assert isinstance(failed.value.__cause__, errors.OutputMissing), hostile.command
            else:
                given = run.result(WAIT_S)["upper"]
                assert set(given) <= {"more"} and "TOP SECRET" not in str(given), hostile.command
    assert secret.read_text() == "top secret"
    assert list(ann.dag(_one()).result(WAIT_S).values()) == [2]


def writes_inputs(*_: Any) -> dict[str, str]:
    """What became of changing what the agent gave."""
    own = Path(os.environ["ACTORGRID_CREDENTIAL_FILE"]).parent
    tries: dict[str, Callable[[], object]] = {
        "write": lambda: os.open(own / "inputs" / "0", os.O_RDWR),
        "remove": lambda: os.unlink(own / "inputs" / "0"),
        "add": lambda: os.open(own / "inputs" / "more", os.O_WRONLY | os.O_CREAT),
        "note": lambda: os.open(own / "takers" / "items-taken.me", os.O_WRONLY | os.O_CREAT),
        "result": lambda: os.symlink("/etc/shadow", own / "result.bin"),
        "items": lambda: os.symlink("/etc/shadow", own / "items"),
        "link": lambda: os.link(own / "inputs" / "0", own / "home" / "again"),
    }
    found = {}
    for name, act in tries.items():
        try:
            act()
            found[name] = "went through"
        except OSError as error:
            found[name] = type(error).__name__
    return found


def test_what_the_agent_gives_a_step_is_not_its_to_change(two_hosts: Two, ann: actorgrid.Client) -> None:
    ids = host_ids(two_hosts[0])
    dag = Dag("changes")
    given = dag.add(inc, 1, node=ids[0])
    for node in ids:
        dag.add(writes_inputs, given, node=node, id=node)
    found = ann.dag(dag).result(WAIT_S)
    for node in ids:
        assert {name for name, said in found[node].items() if said not in REFUSED} == set(), found


def swaps_items(target: str) -> Iterator[int]:
    """Gives one item, and has something else where its items lie."""
    yield 1
    path = Path(os.environ["HOME"], ".actorgrid-items")
    path.unlink()
    if target:
        path.symlink_to(target)
    else:
        os.mkfifo(path)
    yield 2


@pytest.mark.parametrize("target", ["/etc/passwd", ""])
def test_items_that_are_swapped_for_another_file_are_none(two_hosts: Two, ann: actorgrid.Client, target: str) -> None:
    ids = host_ids(two_hosts[0])
    dag = Dag("swaps")
    items = dag.add(swaps_items, target, stream=True, node=ids[0], id="gives")
    dag.add(list, items, node=ids[1], id="takes")
    with pytest.raises(errors.StepFailed) as failed:
        ann.dag(dag).result(WAIT_S)
    assert isinstance(failed.value.__cause__, errors.NotARegularFile)
    assert list(ann.dag(_one()).result(WAIT_S).values()) == [2]
