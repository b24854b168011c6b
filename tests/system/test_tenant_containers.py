"""Containers of tenants' users by a real Podman on a host that runs as root: their processes have the user's uid."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import actorgrid
from actorgrid.actors.work.isolation.probes import try_out
from actorgrid.errors import IsolationNotGiven
from tests.processes import until
from tests.system.agent import closing_all
from tests.system.cluster_host import ClusterHost
from tests.system.podman_store import IMAGE, make_image, podman, podman_store

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="only an agent that runs as root has other uids for work"),
]

EVIL = "localhost/actorgrid-evil:1"
HOSTILE = """
try() { name=$1; shift; if "$@" >/dev/null 2>&1; then echo "went through: $name"; fi; }
grep -E "^(Uid|Gid|Groups|CapEff|CapBnd|NoNewPrivs|Seccomp):" /proc/self/status
try token cat TOKEN
try "others' files" cat SECRET
try "others' files, as mounted" cat /mounted/secret
try "own spec" cat MINE/spec.msgpack
try "a file in its attempt's folder" sh -c "echo > MINE/more"
try "another's process" kill -9 VICTIM
try "another's environment" cat /proc/VICTIM/environ
try mount mount -t tmpfs none /tmp
try namespaces unshare -m true
try "a device" mknod /tmp/disk b 254 0
try "a file of the image's" sh -c "echo > /bin/busybox"
try "root's" chown 0:0 /tmp
try "the runtime's socket" ls /run/podman /run/docker.sock /var/run/docker.sock
echo "pids $(ls /proc | grep -cE '^[0-9]+$')"
"""


class Stage(NamedTuple):
    """A host, and where its containers' images and this test's files are."""

    host: ClusterHost
    folder: Path
    env: dict[str, str]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    if try_out().best != "full":
        pytest.skip(f"this host cannot keep work apart: {'; '.join(try_out().missing())}")
    around = Path(tempfile.mkdtemp())
    around.chmod(0o755)
    (around / "podman").mkdir()
    try:
        with podman_store(around / "podman") as env, pytest.MonkeyPatch.context() as patch:
            for name, value in env.items():
                patch.setenv(name, value)
            made = ClusterHost(around / "host", "simulated:1xH100-80GB")
            with closing_all((made,)):
                made.found()
                yield Stage(made, around, env)
    finally:
        shutil.rmtree(around, ignore_errors=True)


def client_of(host: ClusterHost, user: str, tenant: str) -> actorgrid.Client:
    made = host.cli_json("key", "create", "--user", user, "--role", "user", "--tenant", tenant)
    return actorgrid.connect(made["url"], made["key"], ca_fingerprint=made["ca_fingerprint"])


def said(client: actorgrid.Client, script: str, **more: Any) -> str:
    options = {"container": IMAGE, "cpus": 0.05, "check": True, **more}
    return client.run(["sh", "-c", script], **options).stdout.decode()


def test_nothing_that_a_hostile_container_tries_goes_through(stage: Stage) -> None:
    with client_of(stage.host, "ann", "lab") as ann, client_of(stage.host, "bob", "works") as bob:
        script = "echo mine > secret; echo up; exec sleep 600"
        victim = bob.submit_job(command=["sh", "-c", script], container={"image": IMAGE}, cpus=0.05)["job_id"]
        until(lambda: b"up" in b"".join(bob.logs(victim)), "the victim to be up", within_s=60)
        (secret,) = stage.host.data_dir.glob(f"attempts/{victim}.1/home/secret")
        assert secret.read_text() == "mine\n" and secret.stat().st_uid == int(said(bob, "id -u")) != 0
        pids = podman(stage.env, "inspect", "--latest", "--format", "{{.State.Pid}}").stdout.split()
        uid = int(said(ann, "id -u"))
        assert uid not in (0, secret.stat().st_uid)
        # An image whose lists of users and groups say that the uid is in all groups of the host that matter.
        groups = "".join(f"{name}:x:{gid}:ann\n" for name, gid in (("root", 0), ("disk", 6), ("shadow", 42)))
        users = f"root:x:0:0::/:/bin/sh\nann:x:{uid}:0::/:/bin/sh\n"
        make_image(stage.folder, stage.env, EVIL, {"etc/passwd": users, "etc/group": groups}, setuid=True)
        facts = {"TOKEN": stage.host.data_dir / "token", "SECRET": secret, "VICTIM": pids[0]}
        script = HOSTILE.replace("MINE", "${ACTORGRID_CREDENTIAL_FILE%/*}")
        for name, value in facts.items():
            script = script.replace(name, str(value))
        (stage.folder / "open").mkdir()
        (stage.folder / "open").chmod(0o755)
        (stage.folder / "open" / "secret").write_text("roots")
        (stage.folder / "open" / "secret").chmod(0o600)
        lines = said(ann, script, container=EVIL, mounts=[f"{stage.folder}/open:/mounted"]).splitlines()
        status = {name: value.split() for name, _, value in (line.partition(":") for line in lines[:7])}
        assert status.pop("Uid") == status.pop("Gid") == [str(uid)] * 4
        assert set(status.pop("Groups")) <= {str(uid)}, "none of those that the image names"
        assert status == {
            "CapEff": ["0" * 16],
            "CapBnd": ["0" * 16],
            "NoNewPrivs": ["1"],
            "Seccomp": ["2"],
        }
        assert [line for line in lines[7:] if not line.startswith("pids")] == []
        assert int(lines[-1].split()[1]) < 10, "it sees its own processes"
        assert Path(f"/proc/{pids[0]}").exists()
        bob.cancel(victim)


def test_what_root_would_do_for_it_is_refused(stage: Stage, tmp_path: Path) -> None:
    mine, shut = stage.folder / "mine", stage.folder / "shut"
    for folder in (mine, shut, shut / "open"):
        folder.mkdir()
        folder.chmod(0o755)
    shut.chmod(0o700)
    (stage.folder / "link").symlink_to(shut / "open")
    with client_of(stage.host, "ann", "lab") as ann:
        os.chown(mine, int(said(ann, "id -u")), 0)
        assert said(ann, "echo x > /in/made; ls /in", mounts=[f"{mine}:/in"]) == "made\n"
        (mine / "inner").mkdir()
        refused = {
            f"{shut}/open:/in": "may not enter",
            f"{stage.folder}/link:/in": "may not enter",
            f"{shut}/none:/in": "may not enter",
            f"{stage.host.data_dir}:/in": "may not enter|the agent's",
            f"{stage.host.data_dir}/attempts:/in": "may not enter|the agent's",
            "/:/in": "or around that",
            "/proc:/in": "kernel's",
            "/dev:/in": "kernel's",
            f"{mine}/inner:/in": "can be changed by others",
            f"{mine}:/proc": "in place of",
            f"{mine}:/": "in place of",
        }
        for mount, why in refused.items():
            with pytest.raises(IsolationNotGiven, match=why):
                said(ann, "true", mounts=[mount])
        for image in ("oci-archive:/root/x.tar", "docker-archive:/etc/shadow", "dir:/root"):
            with pytest.raises(IsolationNotGiven, match="a file of the host's"):
                said(ann, "true", container=image)
        with pytest.raises(IsolationNotGiven, match="several lines"):
            said(ann, "true", env={"LINES": "a\nb"})
        # What root runs is not found where the job says, nor told what it says.
        bad = tmp_path / "bin"
        bad.mkdir()
        (bad / "podman").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
        (bad / "podman").chmod(0o755)
        env = {"PATH": str(bad), "LD_PRELOAD": "/none.so", "CONTAINERS_CONF": str(tmp_path / "none"), "NAME": "a b#c "}
        assert said(ann, 'echo "$NAME$LD_PRELOAD$CONTAINERS_CONF"', env=env) == "a b#c /none.so\n"
        assert not (tmp_path / "ran").exists()


def test_its_ordinary_work_is_done_and_said_to_be_held_by_the_kernel(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("was sent\n")
    made = stage.host.cli_json("key", "create", "--user", "ann", "--role", "user", "--tenant", "lab")
    with actorgrid.connect(
        made["url"], made["key"], ca_fingerprint=made["ca_fingerprint"], working_dir=tmp_path
    ) as ann:
        ran = ann.run(
            ["sh", "-c", "cat text.txt; echo made > made.txt; id -u"],
            container=IMAGE,
            outputs=["made.txt"],
            min_isolation="kernel",
            check=True,
            cpus=0.05,
        )
        text, uid = ran.stdout.decode().splitlines()
        assert text == "was sent" and int(uid) != 0
        assert ann.fetch(ran.job_id, to=tmp_path / "back")[0].read_text() == "made\n"
        job_id = ann.submit_job(
            command=["sh", "-c", "echo up; exec sleep 600"], container={"image": IMAGE}, min_isolation="kernel"
        )["job_id"]
        until(lambda: b"up" in b"".join(ann.logs(job_id)), "it to be up", within_s=60)
        by = ann.http.get(f"/api/jobs/{job_id}")["enforced_by"]
        assert (by["files"], by["processes"], by["pids"], by["network"]) == ("kernel", "kernel", "kernel", "none")
        inside = stage.host.cli("exec", job_id, "--", "grep", "-E", "^(Uid|CapBnd|NoNewPrivs):", "/proc/self/status")
        lines = [line.split() for line in inside.stdout.splitlines()]
        assert lines == [["Uid:", *[uid] * 4], ["CapBnd:", "0" * 16], ["NoNewPrivs:", "1"]]
        ann.cancel(job_id)
        assert ann.wait(job_id, 60)["state"] == "cancelled"
    until(lambda: podman(stage.env, "ps", "--all", "--quiet").stdout == "", "nothing of it to be left", within_s=60)


def test_what_cannot_be_so_kept_is_refused_to_a_tenant_and_runs_for_others(stage: Stage, tmp_path: Path) -> None:
    with client_of(stage.host, "ann", "lab") as ann:
        with pytest.raises(IsolationNotGiven, match="a container of work that this host keeps apart"):
            said(ann, "true", container_runtime="apptainer")
    with actorgrid.connect(data_dir=stage.host.data_dir) as own:
        assert said(own, "id -u", cwd=str(tmp_path), env=stage.env) == "0\n"
