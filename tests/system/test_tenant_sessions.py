"""Sessions and actors of a tenant's users on a real host that runs as root: kept apart, with all that others can do."""

from __future__ import annotations

import base64
import errno
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import actorgrid
from actorgrid.actors.work.isolation.probes import try_out
from tests.processes import until
from tests.system.agent import closing_all
from tests.system.cluster_host import ClusterHost

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="only an agent that runs as root has other uids for work"),
]


@actorgrid.actor(cpus=0.05)
class Tally:
    """Counts, and says as whom."""

    def __init__(self, begin: int = 0) -> None:
        self.count = begin

    def add(self, more: int) -> int:
        self.count += more
        return self.count

    def uid(self) -> int:
        import os

        return os.getuid()

    def size(self, data: bytes) -> int:
        return len(data)


def who() -> int:
    import os

    return os.getuid()


def size(data: bytes) -> int:
    return len(data)


def inner() -> tuple[int, int, int]:
    """A task that submits a task, and makes an actor that it calls."""
    import os

    with actorgrid.connect() as client:
        uid = client.submit(who, cpus=0.05).result(60)
        tally = Tally.on(client).create(5)
        return os.getuid(), uid, tally.add(2).result(60)


@pytest.fixture(scope="module")
def host() -> Iterator[ClusterHost]:
    if try_out().best != "full":
        pytest.skip(f"this host cannot keep work apart: {'; '.join(try_out().missing())}")
    around = Path(tempfile.mkdtemp())
    around.chmod(0o755)
    made = ClusterHost(around / "host", "simulated:2xH100-80GB")
    with closing_all((made,)):
        made.found()
        yield made
    shutil.rmtree(around)


def client_of(host: ClusterHost, user: str, tenant: str) -> actorgrid.Client:
    made = host.cli_json("key", "create", "--user", user, "--role", "user", "--tenant", tenant)
    return actorgrid.connect(made["url"], made["key"], ca_fingerprint=made["ca_fingerprint"])


def test_tasks_of_two_tenants_have_uids_and_large_values_come_and_go(host: ClusterHost) -> None:
    with client_of(host, "ann", "lab") as ann, client_of(host, "bob", "works") as bob:
        first, other = (client.submit(who, cpus=0.05).result(60) for client in (ann, bob))
        assert 0 != first != other != 0
        assert ann.submit(who, cpus=0.05, durable=True).result(60) == first
        data = os.urandom(3 * 2**20)
        assert ann.submit(size, data, cpus=0.05).result(60) == len(data)
        kept = ann.put(data)
        assert ann.submit(size, kept, cpus=0.05).result(60) == len(data)
        assert ann.submit(bytes, data, cpus=0.05).result(60) == data


def test_an_actor_of_a_tenants_user_is_called_from_outside_and_from_its_tasks(host: ClusterHost) -> None:
    with client_of(host, "ann", "lab") as ann:
        tally = Tally.on(ann).create(1)
        assert tally.add(2).result(60) == 3
        assert tally.uid().result(60) == ann.submit(who, cpus=0.05).result(60) != 0
        assert ann.submit(_call, tally, cpus=0.05).result(60) == 4
        assert tally.size(os.urandom(2 * 2**20)).result(60) == 2 * 2**20
        outer, nested, count = ann.submit(inner, cpus=0.05).result(120)
        assert outer == nested != 0 and count == 7


def _call(tally: Any) -> Any:
    return tally.add(1).result(60)


def test_a_detached_actor_of_a_tenants_user_has_its_uid_and_is_found_by_name(host: ClusterHost) -> None:
    with client_of(host, "ann", "lab") as ann:
        tally = Tally.options(detached=True, name="of ann").on(ann).create(10)
        assert tally.add(1).result(60) == 11
        assert tally.uid().result(60) == ann.submit(who, cpus=0.05).result(60) != 0
    with client_of(host, "ann", "lab") as again:
        found = again.actor("of ann")
        assert found.add(1).result(60) == 12
        found.stop()
        until(lambda: not again.jobs(state="running"), "the actor to end")


READS_SECRETS = """
import os
folder = os.environ["ACTORGRID_SECRETS"]
file = folder + "/hf"
for act in (lambda: open(folder + "/more", "w"), lambda: os.chmod(file, 0o600), lambda: os.unlink(file)):
    try:
        act()
        print("went through")
    except OSError as error:
        print(error.errno)
facts = os.stat(file)
print(os.getuid() == facts.st_uid != 0, oct(facts.st_mode & 0o777), open(file).read(), os.environ["TOKEN"])
"""


def test_secrets_are_the_uids_to_read_and_nobodys_to_write(host: ClusterHost) -> None:
    with client_of(host, "ann", "lab") as ann:
        ann.http.put("/api/secrets/hf", {"value": base64.b64encode(b"hidden").decode()})
        job_id = ann.submit_job(command=["python3", "-c", READS_SECRETS], secrets=["hf:TOKEN"], cpus=0.05)["job_id"]
        ended = ann.wait(job_id, 60)
        assert ended["state"] == "succeeded", (ended["error"], host.cli("logs", job_id, check=False))
        said = host.cli("logs", job_id).stdout.split("\n")
    assert said[:4] == [*[str(errno.EROFS)] * 3, "True 0o400 hidden hidden"]
    assert not list(Path("/dev/shm").glob(f"actorgrid-secrets-*/{job_id}*"))


def at_the_admin_port(job: str, host_id: str) -> dict[str, int]:
    """What the admin port answers a task that is after others' work and more rights: HTTP's status by what it tried."""
    import json
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    from actorgrid.client.find import locate

    url, own = locate()

    def status(method: str, path: str, body: dict[str, Any] | None, token: str) -> int:
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        data = json.dumps(body).encode() if body is not None else None
        try:
            with urlopen(Request(url + path, data=data, headers=headers, method=method), timeout=60) as answer:
                return int(answer.status)
        except HTTPError as error:
            return error.code

    tries: dict[str, tuple[str, str, dict[str, Any] | None]] = {
        "a job": ("GET", f"/api/jobs/{job}", None),
        "its output": ("GET", f"/api/jobs/{job}/logs", None),
        "its result": ("GET", f"/api/jobs/{job}/result", None),
        "its end": ("POST", f"/api/jobs/{job}/cancel", {}),
        "a key": ("POST", "/api/keys", {"name": "mine", "user_id": "ann", "tenant": "lab", "role": "admin"}),
        "the audit": ("GET", "/api/audit", None),
        "a drain": ("POST", f"/api/hosts/{host_id}/drain", {}),
    }
    found = {what: status(*of, own) for what, of in tries.items()}
    found |= {f"{what}, with no key": status(*of, "") for what, of in tries.items()}
    found |= {f"{what}, with a key made up": status(*of, "agk1.000000000000.guess") for what, of in tries.items()}
    return found


def test_a_task_gets_nothing_of_others_and_no_rights_at_the_admin_port(host: ClusterHost) -> None:
    with client_of(host, "ann", "lab") as ann, client_of(host, "bob", "works") as bob:
        job = bob.submit(time.sleep, 300, cpus=0.05, durable=True)
        [host_id] = (each["node_id"] for each in host.hosts().values())
        found = ann.submit(at_the_admin_port, job.job_id, host_id, cpus=0.05).result(60)
        assert {what: code for what, code in found.items() if code not in (401, 403, 404)} == {}
        assert {code for what, code in found.items() if what.endswith(("no key", "made up"))} == {401}
        assert found["a job"] == found["its end"] == 404
        assert not job.done()
        job.cancel()
