"""A command in a container: which runtime a host has, how it is started, and how it is ended when its client is gone.

The container sees the directory that the command runs in, and its own attempt's folder, by their paths on the host; the
network, and the granted GPUs, are the host's. Nothing of the agent's is mounted. Who runs it is the work's own process,
so a container of podman or apptainer is contained as the work is; docker's is a child of its daemon, and is removed by
its name.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess  # nosec B404 - removes a container by its name
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from actorgrid.container_words import RUNTIMES, ContainerWish, Mount
from actorgrid.errors import ContainerFailed

from .containers_apart import check_image, own_mounts, runtimes_apart, variables_file, without_nvidias, words_apart
from .linux import MARK_ATTEMPT, MARK_HOST, namespaces_apart
from .process_tree import environment_of
from .work_records import WorkSpec, uid_of

OFF = "off"
REMOVE_S = 20.0
"""How long the removal of a container may take before it is left."""
REMOVE_TRIES = 3
LOOK_AGAIN_S = 0.02
_HOSTS_OWN = frozenset({"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONHOME"})
"""Variables that mean something on the host only; the image has its own."""
_OF_HOST = ("LC_", "CONTAINERS_", "DOCKER_", "APPTAINER", "SINGULARITY")


class ContainerRuntime(NamedTuple):
    """A container runtime of this host."""

    name: str
    path: str


def find_runtime(wanted: str, allowed: str, search: str) -> ContainerRuntime:
    """The runtime that is to run a container: the *wanted* one, else the first that is there.

    *allowed*: the setting: ``auto``, one of them, or ``off``. Raises ContainerFailed.
    """
    if allowed == OFF:
        raise ContainerFailed(
            "this host runs no containers", found="work.containers is off", hint="run the command without --container"
        )
    names = [wanted] if wanted else list(RUNTIMES)
    if allowed != "auto":
        names = [name for name in names if name == allowed]
    for name in names:
        path = shutil.which(name, path=search)
        if path is not None:
            return ContainerRuntime(name, path)
    raise ContainerFailed(
        "this host has no container runtime that may be used",
        asked=wanted or "any",
        found=f"none of {', '.join(names) or allowed} is on the PATH"
        + ("" if allowed == "auto" else f"; work.containers allows {allowed} alone"),
        hint="install apptainer or podman there (no root needed to run them), or say which: --container-runtime",
    )


def check_mounts(mounts: Iterable[Mount], allowed: Sequence[str]) -> None:
    """Raises ContainerFailed for a mount whose source is not there, or is not below one of the *allowed* folders."""
    for mount in mounts:
        source = os.path.realpath(mount["source"])
        if not any(folder == "/" or source == folder or source.startswith(f"{folder}/") for folder in allowed):
            raise ContainerFailed(
                "that path of the host may not be mounted",
                asked=mount["source"],
                found=f"work.container_mounts allows {', '.join(allowed) or 'none'}",
                hint="an administrator of the host sets it; a directory that is sent along needs no mount",
            )
        if not os.path.exists(source):
            raise ContainerFailed(
                "a path that is to be mounted is not on this host",
                asked=mount["source"],
                hint="mount what every host has, or send a directory along: --working-dir",
            )


def name_of(tag: str, attempt_id: str) -> str:
    """The name of an attempt's container, by which it is found again; *tag*: of the host's data directory."""
    return f"actorgrid-{hashlib.sha256(f'{tag}/{attempt_id}'.encode()).hexdigest()[:24]}"


def container_command(
    runtime: ContainerRuntime,
    wish: ContainerWish,
    spec: WorkSpec,
    name: str,
    gpus: Mapping[str, Sequence[str]],
) -> list[str]:
    """The command that runs the command of *spec* in the container of that *name*.

    *gpus*: the granted devices by vendor: UUIDs of NVIDIA's; any of AMD's and Intel's bring all of the host's in, and
    the variables of the grant choose among them.
    """
    env = spec["env"]
    inside = variables_inside(env)
    own = spec["container"]["folder"]
    mounts: list[Mount] = [{"source": own, "target": own, "read_only": True}]
    mounts += [{"source": spec["cwd"], "target": spec["cwd"], "read_only": False}]
    if "checkpoint" in spec and spec["checkpoint"]["folder"]:
        followed = spec["checkpoint"]["folder"]
        mounts += [{"source": followed, "target": followed, "read_only": False}]
    mounts = list({mount["target"]: mount for mount in [*mounts, *wish.get("mounts", ())]}.values())
    if uid := uid_of(spec):
        check_image(wish["image"])
        apart = spec["apart"]
        mounts = own_mounts(mounts, uid, apart["attempt"], apart["hidden"])
        inside = without_nvidias(inside)
    if runtime.name == "apptainer":
        return [runtime.path, *_apptainer(wish, spec, mounts, gpus), *spec["command"]]
    return [runtime.path, *_docker(runtime.name, wish, spec, mounts, inside, name, gpus), *spec["command"]]


def _docker(
    runtime: str,
    wish: ContainerWish,
    spec: WorkSpec,
    mounts: Iterable[Mount],
    inside: Iterable[str],
    name: str,
    gpus: Mapping[str, Sequence[str]],
) -> list[str]:
    uid = uid_of(spec)
    words = ["run", "--rm", "--name", name, "--network", "host", "--workdir", spec["cwd"]]
    words += words_apart(runtime, uid) if uid else []
    # It is in a cgroup of its runtime's, and not in the attempt's.
    words += ["--cpus", f"{spec['cpu_milli'] / 1000:.3f}"] if uid and spec.get("cpu_milli") else []
    words += ["--interactive"] if spec.get("stdin") or spec.get("pty") else []
    words += ["--tty"] if spec.get("pty") else []
    words += ["--memory", str(spec["memory_bytes"])] if spec.get("memory_bytes") else []
    if runtime == "docker" and not uid:
        words += ["--user", f"{os.getuid()}:{os.getgid()}"]  # what it writes is the work's, not root's
    for mount in mounts:
        mode = "readonly" if mount["read_only"] else ""
        parts = ("type=bind", f"source={mount['source']}", f"target={mount['target']}", mode)
        words += ["--mount", ",".join(part for part in parts if part)]
    nvidia = list(gpus.get("nvidia", ()))
    if uid:
        words += ["--env-file", variables_file(spec["container"]["folder"], spec["env"], inside)]
        # An image's own would have a hook of NVIDIA's hand out what was not granted.
        words += ["--env", "NVIDIA_VISIBLE_DEVICES=void"] if runtime == "podman" or not nvidia else []
    for variable in () if uid else inside:
        words += ["--env", variable]  # its value from the environment of the runtime: not for everybody to read
    if nvidia and runtime == "docker":
        words += ["--gpus", f'"device={",".join(nvidia)}"']
    elif nvidia:
        words += [word for uuid in nvidia for word in ("--device", f"nvidia.com/gpu={uuid}")]
    if gpus.get("amd"):
        words += ["--device", "/dev/kfd"]
    if gpus.get("amd") or gpus.get("intel"):
        words += ["--device", "/dev/dri"]
    return [*words, "--", wish["image"]] if runtime == "podman" else [*words, wish["image"]]


def _apptainer(
    wish: ContainerWish,
    spec: WorkSpec,
    mounts: Iterable[Mount],
    gpus: Mapping[str, Sequence[str]],
) -> list[str]:
    words = ["exec", "--cleanenv", "--no-home", "--pwd", spec["cwd"]]
    words += ["--nv"] if gpus.get("nvidia") else []
    words += ["--rocm"] if gpus.get("amd") else []
    for mount in mounts:
        words += ["--bind", f"{mount['source']}:{mount['target']}:{'ro' if mount['read_only'] else 'rw'}"]
    image = str(wish["image"])
    is_local = image.startswith(("/", ".")) or image.endswith((".sif", ".img")) or "://" in image
    return [*words, image if is_local else f"docker://{image}"]


def apptainer_variables(env: Mapping[str, str], inside: Iterable[str]) -> dict[str, str]:
    """How variables are told to a container of apptainer without being among its arguments."""
    return {f"APPTAINERENV_{name}": env[name] for name in inside}


def variables_inside(env: Mapping[str, str]) -> list[str]:
    """The names of the variables that a container is given."""
    return [each for each in sorted(env) if each not in _HOSTS_OWN and not each.startswith(_OF_HOST)]


def in_container(spec: WorkSpec) -> list[str]:
    """The command of a spec that asks for a container, with its variables made ready. Raises ContainerFailed."""
    wish, host = spec["container"]["wish"], spec["container"]
    runtime = runtime_of(spec)
    wanted = wish.get("mounts", ())
    if uid := uid_of(spec):  # first: what is behind a door that is shut to it, it is not told either
        wanted = own_mounts(wanted, uid, spec["apart"]["attempt"], spec["apart"]["hidden"])
    check_mounts(wanted, host["mounts"])
    if runtime.name == "apptainer":
        spec["env"] |= apptainer_variables(spec["env"], variables_inside(spec["env"]))
    command = container_command(runtime, wish, spec, host["name"], host["gpus"])
    spec["env"] = variables_of_runtime(spec)
    return command


def runtime_of(spec: WorkSpec) -> ContainerRuntime:
    """The runtime that is to run the container of a spec. Raises ContainerFailed.

    What root runs for work that is kept apart is found where the agent looks for it, and not where the work says.
    """
    host, wanted = spec["container"], spec["container"]["wish"].get("runtime", "")
    search = variables_of_runtime(spec).get("PATH", os.defpath)
    if not uid_of(spec):
        return find_runtime(wanted, host["allowed"], search)
    able = runtimes_apart(host["allowed"], search)
    return find_runtime(wanted if wanted or not able else able[0], host["allowed"], search)


def variables_of_runtime(spec: WorkSpec) -> dict[str, str]:
    """The variables with which the runtime of a spec's container is run: the work's, or at full the agent's."""
    if not uid_of(spec):
        return spec["env"]
    marks = {name: spec["env"][name] for name in (MARK_ATTEMPT, MARK_HOST) if name in spec["env"]}
    return {**spec["container"].get("runtime_env", {}), **marks}


class CommandInside(NamedTuple):
    """How another command is run in the container of a running job."""

    command: list[str]
    inside_pid: int
    """A process in whose user and mount namespaces it is run; 0: the runtime sees to it."""
    env: dict[str, str] | None
    """Its variables; ``None``: as of the job."""


def command_inside(
    spec: WorkSpec,
    command: Sequence[str],
    added: Mapping[str, str],
    outside_pid: int,
    pids: Iterable[int],
    *,
    has_terminal: bool,
) -> CommandInside:
    """How *command* is run in the container of *spec*. Raises ContainerFailed.

    *added*: variables beyond those of the job. The container's processes are among *pids*; *outside_pid* is one that is
    kept as the job is, and in no container.
    """
    host = spec["container"]
    runtime = runtime_of(spec)
    if runtime.name != "apptainer":
        words = ["exec", "--interactive", *(["--tty"] if has_terminal else []), "--workdir", spec["cwd"]]
        if uid_of(spec):
            words += ["--env-file", variables_file(host["folder"], added, without_nvidias(added))]
            env = variables_of_runtime(spec)
            return CommandInside([runtime.path, *words, host["name"], *command], 0, env)
        words += [word for name in added for word in ("--env", name)]  # its value from the environment of the runtime
        return CommandInside([runtime.path, *words, host["name"], *command], 0, None)
    # It has no command for that; a container of it is a mount namespace, and without root a user namespace.
    for pid in pids:
        try:
            if namespaces_apart(pid, outside_pid, ("mnt",)):
                return CommandInside(list(command), pid, {**environment_of(pid), **added})
        except OSError:
            continue  # it has ended
    raise ContainerFailed("the job's container has not begun, or has ended", asked=spec["id"])


class ContainerRemoval:
    """The end and removal of the container of a spec: of docker it would live on, of podman its name would.

    A podman whose monitor was killed too (conmon) fails to remove the container at first, having noted by then that it
    is stopped, and removes it when it is asked again: so a removal that fails is repeated, a few times.
    """

    def __init__(self, spec: WorkSpec) -> None:
        self._command = _removal_of(spec)
        # Without the attempt's marks: whatever still carries them is ended as what the attempt has left behind.
        env = variables_of_runtime(spec) if spec.get("container") else spec["env"]
        self._env = {name: value for name, value in env.items() if name not in (MARK_ATTEMPT, MARK_HOST)}
        self._tries = 0
        self._running: subprocess.Popen[bytes] | None = None

    def is_over(self) -> bool:
        """Whether nothing more is to be done; begins what is to be done next. Never waits."""
        if self._running is not None:
            ended = self._running.poll()
            if ended is None:
                return False
            if ended == 0 or self._tries >= REMOVE_TRIES:
                return True
        return not self._begin()

    def give_up(self) -> None:
        """End the removal that runs. Never raises."""
        self._tries = REMOVE_TRIES
        if self._running is not None:
            self._running.kill()

    def _begin(self) -> bool:
        if self._command is None:
            return False
        self._tries += 1
        try:
            self._running = subprocess.Popen(  # nosec B603 - a fixed command line
                self._command,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
            )
        except OSError:
            return False
        return True


def _removal_of(spec: WorkSpec) -> list[str] | None:
    host = spec.get("container")
    if not host:
        return None
    try:
        runtime = runtime_of(spec)
    except ContainerFailed:
        return None
    # A container of apptainer is one of the work's own processes.
    return None if runtime.name == "apptainer" else [runtime.path, "rm", "--force", host["name"]]


def remove_container(spec: WorkSpec) -> None:
    """End and remove the container of a spec; returns when that is done, or takes longer than REMOVE_S."""
    removal = ContainerRemoval(spec)
    until_s = time.monotonic() + REMOVE_S
    while not removal.is_over():
        if time.monotonic() >= until_s:
            removal.give_up()
        time.sleep(LOOK_AGAIN_S)
