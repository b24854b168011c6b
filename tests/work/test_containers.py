"""Commands in containers: which runtime, with which words, and by which error when it cannot be."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.work import containers
from actorgrid.actors.work.container_endings import failure_of_runtime
from actorgrid.actors.work.containers import (
    ContainerRuntime,
    check_mounts,
    command_inside,
    container_command,
    find_runtime,
    in_container,
)
from actorgrid.actors.work.containers_apart import (
    check_image,
    own_mounts,
    runtime_variables,
    runtimes_apart,
    variables_file,
)
from actorgrid.actors.work.environment import by_vendor
from actorgrid.actors.work.exec_child import ExecChild, ExecFiles
from actorgrid.client.options import options_of
from actorgrid.container_words import MOUNTS_MAX, is_container, is_image, mount_of
from actorgrid.errors import BadRequest, ContainerFailed, IsolationNotGiven
from tests.processes import until

ENV = {"PATH": "/usr/bin", "HOME": "/root", "CUDA_VISIBLE_DEVICES": "GPU-1", "SECRET": "s3cret", "LC_ALL": "C"}
WISH: dict[str, Any] = {"image": "docker.io/library/python:3.12", "mounts": [mount_of("/data:/in:ro"), mount_of("/w")]}


def spec(**more: Any) -> dict[str, Any]:
    container = {"wish": WISH, "allowed": "auto", "mounts": ["/"], "name": "n1", "folder": "/a/j.1", "gpus": {}}
    return {"command": ["python", "x.py"], "env": dict(ENV), "cwd": "/here", "container": container, **more}


def words(runtime: str, gpus: dict[str, list[str]], **more: Any) -> list[str]:
    return container_command(ContainerRuntime(runtime, f"/bin/{runtime}"), WISH, spec(**more), "n1", gpus)


def test_podman_gets_devices_by_their_ids_and_variables_by_name_alone() -> None:
    said = words("podman", {"nvidia": ["GPU-1", "GPU-2"], "amd": ["x"]}, memory_bytes=2**30, stdin="/blob")
    assert said[:4] == ["/bin/podman", "run", "--rm", "--name"] and said[-4:] == ["--", WISH["image"], "python", "x.py"]
    text = " ".join(said)
    assert "--device nvidia.com/gpu=GPU-1 --device nvidia.com/gpu=GPU-2 --device /dev/kfd --device /dev/dri" in text
    assert f"--memory {2**30}" in text and "--interactive" in said and "--workdir /here" in text
    assert "type=bind,source=/data,target=/in,readonly" in said and "type=bind,source=/w,target=/w" in said
    assert "type=bind,source=/here,target=/here" in said and "type=bind,source=/a/j.1,target=/a/j.1,readonly" in said
    # Who lists processes sees no value; what means something on the host only stays there.
    assert "s3cret" not in text and "--env SECRET" in text and "--env PATH" not in text and "--env LC_ALL" not in text


def test_the_directory_that_follows_the_job_can_be_written_to_inside() -> None:
    followed = {"state": "", "folder": "/a/j.1/checkpoint", "link": "/here/ckpt", "every_s": None, "takes": True}
    said = words("podman", {}, checkpoint=followed)
    assert "type=bind,source=/a/j.1/checkpoint,target=/a/j.1/checkpoint" in said


def test_docker_runs_as_the_works_user_with_the_granted_devices() -> None:
    said = words("docker", {"nvidia": ["GPU-1"], "intel": ["x"]})
    assert said[-3:] == [WISH["image"], "python", "x.py"] and f"{os.getuid()}:{os.getgid()}" in said
    assert said[said.index("--gpus") + 1] == '"device=GPU-1"' and "/dev/dri" in said and "/dev/kfd" not in said


def test_apptainer_takes_files_and_names_of_images_and_no_variables_of_the_host() -> None:
    said = words("apptainer", {"nvidia": ["GPU-1"], "amd": ["x"]})
    assert said[:2] == ["/bin/apptainer", "exec"] and "--nv" in said and "--rocm" in said and "--cleanenv" in said
    assert "/data:/in:ro" in said and f"docker://{WISH['image']}" in said
    file = container_command(ContainerRuntime("apptainer", "a"), {"image": "/images/train.sif"}, spec(), "n1", {})
    assert "/images/train.sif" in file


def test_the_runtime_is_the_one_asked_for_or_the_first_that_is_there(tmp_path: Path) -> None:
    for name in ("docker", "podman"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    path = str(tmp_path)
    assert find_runtime("", "auto", path).name == "podman", "what needs no root comes first"
    assert find_runtime("docker", "auto", path).name == find_runtime("", "docker", path).name == "docker"
    for wanted, allowed in (("apptainer", "auto"), ("", "apptainer"), ("podman", "docker"), ("", "off")):
        with pytest.raises(ContainerFailed):
            find_runtime(wanted, allowed, path)
    with pytest.raises(ContainerFailed, match="no container runtime"):
        find_runtime("", "auto", str(tmp_path / "none"))


def test_mounts_are_of_what_is_there_and_allowed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("/etc")
    allowed = [str(tmp_path)]
    wanted = mount_of(f"{tmp_path}/data")
    assert wanted is not None
    check_mounts([wanted], allowed)
    check_mounts([wanted], ["/"])
    for source, match in (
        (f"{tmp_path}/none", "not on this host"),
        (f"{tmp_path}/link", "may not"),
        ("/etc", "may not"),
    ):
        mount = mount_of(source)
        assert mount is not None
        with pytest.raises(ContainerFailed, match=match):
            check_mounts([mount], allowed)
    with pytest.raises(ContainerFailed, match="may not"):
        check_mounts([wanted], [])


@pytest.mark.parametrize(
    ("code", "stderr", "match"),
    [
        (125, "Error: initializing source docker://x: manifest unknown", "podman cannot run the container: the image"),
        (125, "docker: Error response from daemon: pull access denied for x.", "docker cannot run the container: the"),
        (255, "FATAL:   Unable to pull docker://x", "apptainer cannot run"),
        (125, "Error: crun: cgroups are not there", "podman cannot run the container"),
        (126, "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=GPU-1", "podman .*: its GPU"),
        (125, "Error: stat /dev/kfd: no such file or directory", "podman cannot run the container: its GPU"),
        (125, "docker: Error response from daemon: could not select device driver", "docker .*: its GPU"),
        (125, "Error: initializing source docker://x: pinging container registry x", "podman .*: the image"),
        (126, "Error: crun: cannot be run: permission denied", None),
        (125, "the command's own words", None),
        (1, "Error: of the command", None),
        (None, "Error: x", None),
    ],
)
def test_a_runtime_that_fails_is_told_from_a_command_that_does(code: int, stderr: str, match: str | None) -> None:
    found = failure_of_runtime(spec(), code, f"pulling\n{stderr}\n")
    assert (found is None) if match is None else (found is not None and re.match(match, found.message))
    assert failure_of_runtime({"kind": "command"}, code, stderr) is None


def test_wishes_are_checked_where_they_are_made_and_where_they_are_kept() -> None:
    body = options_of({"container": "a/b:1", "mounts": ["/x:/y:ro"], "container_runtime": "docker"}).job_request()
    assert body["container"] == {
        "image": "a/b:1",
        "runtime": "docker",
        "mounts": [{"source": "/x", "target": "/y", "read_only": True}],
    }
    assert is_container(body["container"]) and is_container({"image": "a"})
    for wrong in (
        {"container": "--privileged"},
        {"container": "a b"},
        {"container": "a", "mounts": ["relative"]},
        {"container": "a", "mounts": ["/x:/y:/z"]},
        {"container": "a", "mounts": ["/x,readonly"]},
        {"container": "a", "container_runtime": "lxc"},
        {"mounts": ["/x"]},
    ):
        with pytest.raises(BadRequest):
            options_of(wrong)
    mount = mount_of("/x")
    for hostile in (
        None,
        {},
        {"image": "-v"},
        {"image": "a", "privileged": True},
        {"image": "a", "mounts": [mount] * (MOUNTS_MAX + 1)},
        {"image": "a", "mounts": [{**dict(mount or {}), "more": 1}]},
        {"image": "a", "runtime": "sh"},
        {"image": "a\n"},
    ):
        assert not is_container(hostile)
    assert not is_image("x" * 600)


def test_simulated_devices_are_not_handed_on() -> None:
    devices: list[Any] = [
        {"uuid": "GPU-1", "vendor": "nvidia", "source": "probed"},
        {"uuid": "SIM-2", "vendor": "nvidia", "source": "simulated"},
    ]
    assert by_vendor(devices, ["GPU-1", "SIM-2"]) == {"nvidia": ["GPU-1"]}


def test_a_stub_of_a_runtime_is_run_with_the_works_variables(tmp_path: Path) -> None:
    (tmp_path / "podman").write_text("#!/bin/sh\n")
    (tmp_path / "podman").chmod(0o755)
    asked = spec(env={**ENV, "PATH": str(tmp_path)})
    asked["container"]["wish"] = {"image": "x"}
    made = in_container(asked)
    assert made[0] == str(tmp_path / "podman") and made[-2:] == ["python", "x.py"]
    (tmp_path / "podman").rename(tmp_path / "apptainer")
    asked = spec(env={**ENV, "PATH": str(tmp_path)})
    asked["container"]["wish"] = {"image": "x"}
    in_container(asked)
    assert asked["env"]["APPTAINERENV_SECRET"] == "s3cret" and "APPTAINERENV_PATH" not in asked["env"]
    containers.remove_container(asked)  # of apptainer nothing is left that has a name


def test_a_removal_that_fails_is_repeated_and_is_nothing_that_the_attempt_left_behind(tmp_path: Path) -> None:
    stub = tmp_path / "podman"
    stub.write_text(f'#!/bin/sh\necho "$@ of [$ACTORGRID_ATTEMPT]" >> {tmp_path}/said\ntest -e {tmp_path}/done\n')
    stub.chmod(0o755)
    asked = spec(env={**ENV, "PATH": f"{tmp_path}:/usr/bin:/bin", "ACTORGRID_ATTEMPT": "j.1", "ACTORGRID_HOST": "h"})
    asked["container"]["wish"] = {"image": "x"}
    containers.remove_container(asked)
    assert (tmp_path / "said").read_text() == "rm --force n1 of []\n" * containers.REMOVE_TRIES
    (tmp_path / "done").touch()
    containers.remove_container(asked)
    assert len((tmp_path / "said").read_text().splitlines()) == containers.REMOVE_TRIES + 1


def test_a_removal_that_does_not_end_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "podman").write_text("#!/bin/sh\nexec sleep 1000\n")
    (tmp_path / "podman").chmod(0o755)
    asked = spec(env={**ENV, "PATH": f"{tmp_path}:/usr/bin:/bin"})
    asked["container"]["wish"] = {"image": "x"}
    removal = containers.ContainerRemoval(asked)
    assert not removal.is_over() and not removal.is_over()
    removal.give_up()
    until(removal.is_over, "the removal is over")


@pytest.mark.parametrize("runtime", ["podman", "docker"])
def test_another_command_is_run_in_the_container_by_its_runtime(tmp_path: Path, runtime: str) -> None:
    (tmp_path / runtime).write_text("#!/bin/sh\n")
    (tmp_path / runtime).chmod(0o755)
    asked = spec(env={**ENV, "PATH": str(tmp_path)})
    asked["container"]["wish"] = {"image": "x"}
    inside = command_inside(asked, ["sh", "-c", "ls"], {"TERM": "xterm"}, os.getpid(), [], has_terminal=True)
    assert inside.command[0] == str(tmp_path / runtime)
    assert inside.command[1:4] == ["exec", "--interactive", "--tty"]
    assert inside.command[-4:] == [asked["container"]["name"], "sh", "-c", "ls"]
    assert ("--env", "TERM") in zip(inside.command, inside.command[1:], strict=False)
    assert (inside.inside_pid, inside.env) == (0, None)
    plain = command_inside(asked, ["ls"], {}, os.getpid(), [], has_terminal=False)
    assert "--tty" not in plain.command


def test_another_command_of_apptainer_goes_to_where_the_containers_processes_are(tmp_path: Path) -> None:
    (tmp_path / "apptainer").write_text("#!/bin/sh\n")
    (tmp_path / "apptainer").chmod(0o755)
    asked = spec(env={**ENV, "PATH": str(tmp_path)})
    asked["container"]["wish"] = {"image": "x"}
    asked["id"] = "j.1"
    with pytest.raises(ContainerFailed, match="has not begun"):
        command_inside(asked, ["ls"], {}, os.getpid(), [os.getpid(), 2**22], has_terminal=False)
    # In the place of a container: a process in a mount namespace of its own.
    apart = subprocess.Popen(
        ["unshare", "-m", "sh", "-c", "echo up; read x"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"], "INSIDE": "yes"},
    )
    assert apart.stdin is not None and apart.stdout is not None
    with apart:
        if apart.stdout.readline() != b"up\n":
            pytest.skip("no mount namespace is to be had here")
        inside = command_inside(
            asked, ["readlink", "/proc/self/ns/mnt"], {"MORE": "x"}, os.getpid(), [apart.pid], has_terminal=False
        )
        assert inside.inside_pid == apart.pid
        assert inside.env is not None and (inside.env["INSIDE"], inside.env["MORE"]) == ("yes", "x")
        child = ExecChild(inside.command, inside.env, "/", None, 0, inside.inside_pid)
        read, write = os.pipe()
        null = os.open(os.devnull, os.O_RDWR)
        pid, fault = child.start(ExecFiles(null, write, null, False))
        for fd in (write, null):
            os.close(fd)
        with open(read, "rb") as pipe:
            assert pipe.read().decode().strip() == os.readlink(f"/proc/{apart.pid}/ns/mnt")
        assert os.waitpid(pid, 0)[1] == 0
        os.close(fault)
        apart.stdin.close()


UID = 1_900_000_001


def apart(folder: Path, runtime: str = "podman", **more: Any) -> dict[str, Any]:
    """The spec of a container of work that has a uid of its own, whose attempt's folder that is."""
    kept = {"level": "full", "uid": UID, "attempt": str(folder), "hidden": ["/srv/data", "/run/agent"], "read": []}
    asked = spec(apart=kept, cwd=f"{folder}/home", **more)
    asked["env"] |= {"LD_PRELOAD": "/tmp/evil.so", "NVIDIA_VISIBLE_DEVICES": "all", "ACTORGRID_ATTEMPT": "j.1"}
    asked["container"] |= {"wish": {"image": "a/b:1", "runtime": runtime}, "folder": str(folder)}
    asked["container"]["runtime_env"] = {"PATH": "/usr/bin", "HOME": "/root"}
    return asked


@pytest.mark.parametrize("runtime", ["podman", "docker"])
def test_what_has_a_uid_is_nothing_more_than_that_in_its_container(tmp_path: Path, runtime: str) -> None:
    asked = apart(tmp_path, runtime)
    made = container_command(ContainerRuntime(runtime, f"/bin/{runtime}"), {"image": "a/b:1"}, asked, "n1", {})
    text = " ".join(made)
    for words in (f"--user {UID}:{UID} ", "--cap-drop ALL ", "--security-opt no-new-privileges ", "--ipc private "):
        assert words in text
    assert made.count("--user") == 1 and "--pids-limit" in made and "nproc=" in text
    for never in ("--privileged", "--cap-add", "host --pid", "--device", "unconfined", "--env LD_PRELOAD", "s3cret"):
        assert never not in text
    assert "--pid private --uts private" in text or runtime == "docker", "which has no other words for it"
    assert "--env NVIDIA_VISIBLE_DEVICES=void" in text and "--cpus" not in made
    held = {**asked, "cpu_milli": 1250}
    assert "--cpus 1.250 " in " ".join(
        container_command(ContainerRuntime(runtime, "r"), {"image": "a"}, held, "n1", {})
    )
    told = Path(made[made.index("--env-file") + 1])
    assert told.stat().st_mode & 0o777 == 0o600 and told.parent == tmp_path
    lines = told.read_text().splitlines()
    assert {"SECRET=s3cret", "LD_PRELOAD=/tmp/evil.so"} <= set(lines) and not any("NVIDIA" in line for line in lines)
    mounted = [word for word in made if word.startswith("type=bind")]
    assert mounted == [
        f"type=bind,source={tmp_path},target={tmp_path},readonly",
        f"type=bind,source={tmp_path}/home,target={tmp_path}/home",
    ]


def test_root_runs_what_the_agent_finds_with_the_agents_variables(tmp_path: Path) -> None:
    for folder in ("mine", "agents"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "podman").write_text("#!/bin/sh\n")
        (tmp_path / folder / "podman").chmod(0o755)
    asked = apart(tmp_path, env={**ENV, "PATH": str(tmp_path / "mine")})
    asked["container"]["runtime_env"] = {"PATH": str(tmp_path / "agents"), "HOME": "/root"}
    del asked["container"]["wish"]["runtime"]
    exec_ = command_inside(asked, ["ls"], {"LD_PRELOAD": "/x"}, os.getpid(), [], has_terminal=False)
    expected = {"PATH": str(tmp_path / "agents"), "HOME": "/root", "ACTORGRID_ATTEMPT": "j.1"}
    assert exec_.command[0] == str(tmp_path / "agents" / "podman") and exec_.env == expected
    assert "LD_PRELOAD=/x\n" in Path(exec_.command[exec_.command.index("--env-file") + 1]).read_text()
    made = in_container(asked)
    assert made[0] == str(tmp_path / "agents" / "podman") and asked["env"] == expected
    assert runtime_variables({"PATH": "/b", "LD_PRELOAD": "/x", "DOCKER_HOST": "d", "https_proxy": "p", "X": ""}) == {
        "PATH": "/b",
        "DOCKER_HOST": "d",
        "https_proxy": "p",
    }
    # Apptainer makes none such, and is not looked for.
    (tmp_path / "agents" / "podman").rename(tmp_path / "agents" / "apptainer")
    assert runtimes_apart("auto", str(tmp_path / "agents") + "/") == ()


@pytest.mark.parametrize(
    "image",
    ["/root/x.sif", "./x", "~/x", "oci-archive:/x", "dir:/root", "docker-archive:x", "sif:x", "oci:x:1", "a:/b"],
)
def test_an_image_that_root_would_read_of_the_host_is_refused(image: str) -> None:
    with pytest.raises(IsolationNotGiven, match="a file of the host's"):
        check_image(image)


@pytest.mark.parametrize("image", ["a", "a/b:1", "docker.io/x/y@sha256:00", "docker://x/y:1", "host:5000/x:1", "a:1"])
def test_an_image_of_a_registry_or_the_store_is_taken(image: str) -> None:
    check_image(image)


def test_what_cannot_be_told_or_mounted_is_refused_before_anybody_looks(tmp_path: Path) -> None:
    for name, value in (("A", "a\nB=c"), ("A=b", "c"), (" A", "b"), ("#A", "b"), ("A\nB", "c"), ("A*", "\r")):
        with pytest.raises(IsolationNotGiven, match="several lines"):
            variables_file(str(tmp_path), {name: value}, [name])
    for source, target in (("/x,readonly", "/in"), ("/x", "/"), ("/x", "/proc/self"), ("/x", "/in/../sys")):
        with pytest.raises(IsolationNotGiven):
            own_mounts([{"source": source, "target": target, "read_only": False}], UID, "/a/j.1", [])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root looks with the rights of another uid")
def test_a_mount_is_of_what_its_uid_may_enter_by_a_way_that_root_alone_can_change(tmp_path: Path) -> None:
    around = Path(tempfile.mkdtemp())
    try:
        around.chmod(0o755)
        for name in ("open", "shut", "mine", "mine/inner", "shut/open", "data", "data/attempts"):
            (around / name).mkdir(mode=0o755)
        (around / "shut").chmod(0o700)
        os.chown(around / "mine", UID, UID)
        (around / "link").symlink_to(around / "open")
        (around / "out").symlink_to(around / "shut" / "open")
        os.mkfifo(around / "open" / "fifo")

        def taken(source: Path | str) -> str:
            hidden = [str(around / "data")]
            mount = {"source": str(source), "target": "/in", "read_only": False}
            return own_mounts([mount], UID, str(around / "data" / "attempts" / "j.1"), hidden)[0]["source"]  # type: ignore[list-item]

        assert taken(around / "open") == taken(around / "link") == str(around / "open")
        assert taken(around / "mine") == str(around / "mine")
        for source in ("shut/open", "out", "none", "mine/inner", "data", "data/attempts", "open/fifo"):
            with pytest.raises(IsolationNotGiven):
                taken(around / source)
        for source in ("/", "/proc", "/dev", "/sys/kernel", around, f"{around}/data/attempts/j.1/.."):
            with pytest.raises(IsolationNotGiven):
                taken(source)
        assert (os.geteuid(), os.getegid()) == (0, 0)
    finally:
        shutil.rmtree(around)
