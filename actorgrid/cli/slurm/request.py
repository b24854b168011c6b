"""From what ``sbatch`` and ``srun`` were asked to what a job is asked for here."""

from __future__ import annotations

import math
import os
import socket
from typing import Any

import click

from actorgrid.labels import is_label
from actorgrid.models import Pool
from actorgrid.notification_words import EVENTS, MAIL, TARGETS_MAX, events_of, is_name, target_fault

from .directives import Asked, gpus_of, mebibytes_of, seconds_of, whole

PRIORITY = 50
GRACE_MAX_S = 3600.0
MAIL_TYPES = {
    "NONE": "",
    "BEGIN": "started",
    "END": "ended",
    "FAIL": "failed,lost",
    "INVALID_DEPEND": "failed",
    "REQUEUE": "requeued",
    "ALL": ",".join(EVENTS),
}
"""The events that types of mail are. What waits for a job that failed has failed, and so has what ran for too long."""
SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "ash")


class Translation:
    """What a job is asked for: ``options`` as those of ``run`` and ``submit``, ``notes`` on what has no meaning here,
    ``variables`` of Slurm that have one."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.notes = [f"{name} has no meaning here" for name in asked.without_meaning]
        self.members, self.nodes, self.spread = _members(asked)
        self.options = self._options()
        self.variables = self._variables()

    def _options(self) -> dict[str, Any]:
        asked = self.asked
        gpus, model = self._gpus()
        cpus = whole("--cpus-per-task", asked["--cpus-per-task"])
        per_gpu = whole("--cpus-per-gpu", asked["--cpus-per-gpu"])
        self.cpus = cpus or (per_gpu * max(1, math.ceil(gpus)) if per_gpu else 1)
        env, env_from_me = self._export()
        labels, annotations = self._words()
        mounts = asked["--container-mounts"]
        notify, notify_on = self._mail()
        return {
            "gpus": gpus,
            "gpu_memory": None,
            "gpu_models": (model,) if model else (),
            "gpu_profile": None,
            "gpu_topology": None,
            "cpus": float(self.cpus),
            "memory": self._memory(gpus),
            "gang": self.members,
            "spread": self.spread,
            "min_isolation": None,
            "priority": self._priority(),
            "timeout": None if asked["--time"] is None else seconds_of(asked["--time"]),
            "retries": 0,
            "deadline": self._deadline(),
            "no_preempt": False,
            "grace_s": self._grace(),
            "max_isolation_s": None,
            "env": env,
            "env_from_me": env_from_me,
            "cwd": os.path.abspath(asked["--chdir"] or os.getcwd()),
            "working_dir": None,
            "exclude": (),
            "outputs": (),
            "checkpoint": None,
            "checkpoint_every_s": None,
            "container": self._image(),
            "mounts": tuple(mounts.split(",")) if mounts else (),
            "container_runtime": None,
            "requirements": None,
            "packages": (),
            "python": None,
            "pool": self._pool(),
            "annotations": annotations or None,
            "labels": labels or None,
            "stop_when_idle_s": None,
            "notify": notify,
            "notify_on": notify_on,
            "secrets": (),
            "name": asked["--job-name"] or "",
            "after": self._after(),
        }

    def _gpus(self) -> tuple[float, str]:
        """GPUs of each member, and their model."""
        asked = self.asked
        per_task = asked["--gpus-per-task"]
        if per_task is not None:
            model, count = gpus_of("--gpus-per-task", per_task)
            return float(count), model
        per_node: list[tuple[str, int]] = []
        if asked["--gpus-per-node"] is not None:
            per_node.append(gpus_of("--gpus-per-node", asked["--gpus-per-node"]))
        for part in (asked["--gres"] or "").split(","):
            kind = part.partition(":")[0].lower()
            if kind == "gpu" and not per_node:
                per_node.append(gpus_of("--gres", part))
            elif part and kind not in ("gpu", "none"):
                self.notes.append(f"--gres={part} has no meaning here; shares of a GPU: actorgrid run --gpus 0.25")
        if per_node:
            model, count = per_node[0]
            return _shared(count * self.nodes, self.members), model
        if asked["--gpus"] is not None:
            model, count = gpus_of("--gpus", asked["--gpus"])
            return _shared(count, self.members), model
        return 0.0, ""

    def _memory(self, gpus: float) -> str | None:
        """Memory of each member."""
        asked = self.asked
        mebibytes = 0.0
        if asked["--mem-per-cpu"] is not None:
            mebibytes = mebibytes_of("--mem-per-cpu", asked["--mem-per-cpu"]) * self.cpus
        elif asked["--mem-per-gpu"] is not None:
            mebibytes = mebibytes_of("--mem-per-gpu", asked["--mem-per-gpu"]) * max(1, math.ceil(gpus))
        elif asked["--mem"] is not None:
            mebibytes = mebibytes_of("--mem", asked["--mem"]) * self.nodes / self.members
            if not mebibytes:
                self.notes.append("--mem=0, all of a node, has no meaning here: the job's memory is not counted")
        return f"{max(1, math.ceil(mebibytes))}MiB" if mebibytes else None

    def _priority(self) -> int:
        asked = self.asked
        priority = PRIORITY
        if asked["--priority"] is not None:
            if asked["--priority"].isdecimal() and int(asked["--priority"]) <= 100:
                priority = int(asked["--priority"])
            else:
                self.notes.append(f"--priority={asked['--priority']} has no meaning here: priorities are from 0 to 100")
        if asked["--nice"] is not None:
            try:
                priority -= math.ceil(int(asked["--nice"]) / 2)
            except ValueError:
                raise click.UsageError(f"--nice {asked['--nice']!r} is no number") from None
        return min(100, max(0, priority))

    def _grace(self) -> float | None:
        """``--signal=TERM@60``: so much time between SIGTERM and SIGKILL when it is stopped for others."""
        said = self.asked["--signal"]
        if said is None:
            return None
        name, _, length = said.rpartition("@")
        name = name.rpartition(":")[2].upper().removeprefix("SIG")
        if name in ("TERM", "15") and length.isdecimal():
            return min(GRACE_MAX_S, float(length))
        self.notes.append(f"--signal={said} has no meaning here: what is stopped gets SIGTERM, as with TERM@60")
        return None

    def _deadline(self) -> Any:
        from ..times import deadline_of

        said = self.asked["--deadline"]
        try:
            return deadline_of(click.Context(click.Command("sbatch")), click.Option(["--deadline"]), said)
        except click.BadParameter:
            self.notes.append(f"--deadline={said} has no meaning here; write it as 2030-01-31T18:00:00")
            return None

    def _export(self) -> tuple[dict[str, str], bool | None]:
        """Variables that were named, and whether the others of here go along; ``None``: as without Slurm."""
        said = self.asked["--export"]
        parts = [part for part in (said or "ALL").split(",") if part]
        env: dict[str, str] = {}
        for part in parts:
            name, equals, value = part.partition("=")
            if equals:
                env[name] = value
            elif name not in ("ALL", "NONE", "NIL") and name in os.environ:
                env[name] = os.environ[name]
        if said is None:
            return env, None
        return env, "ALL" in parts

    def _words(self) -> tuple[dict[str, str], dict[str, str]]:
        """Labels and annotations: by account and partition jobs are found, a comment is for people."""
        labels, annotations = {}, {}
        for name in ("account", "partition"):
            value = self.asked[f"--{name}"]
            if value is not None and is_label((name, value)):
                labels[name] = value
            elif value is not None:
                annotations[name] = value
        if self.asked["--comment"] is not None:
            annotations["comment"] = self.asked["--comment"]
        return labels, annotations

    def _mail(self) -> tuple[tuple[str, ...], list[str]]:
        """Who is told of the job, and of what. Nobody, where that has no meaning here."""
        users, types = self.asked["--mail-user"], self.asked["--mail-type"]
        words = [word.strip().upper() for word in (types or "").split(",") if word.strip()]
        self.notes += [f"--mail-type={word} has no meaning here" for word in words if word not in MAIL_TYPES]
        events = events_of(MAIL_TYPES[word] for word in words if word in MAIL_TYPES)
        targets = [user if is_name(user) else f"{MAIL}:{user}" for user in (users or "").split(",") if user]
        wrong = next((fault for each in targets if (fault := target_fault(each))), "")
        if wrong or len(targets) > TARGETS_MAX:
            self.notes.append(f"--mail-user={users} has no meaning here: {wrong or f'{TARGETS_MAX} at most are told'}")
        elif events and not targets:
            self.notes.append("--mail-type has no meaning here without --mail-user: nobody knows the address of a user")
        elif targets and not types:
            self.notes.append("--mail-user tells nobody without --mail-type")
        elif events:
            return tuple(dict.fromkeys(targets)), events
        return (), []

    def _pool(self) -> str | None:
        """The pool of workers that is called as the partition, if one is."""
        partition: str | None = self.asked["--partition"]
        if partition is None or partition in [pool.value for pool in Pool]:
            return partition
        self.notes.append(f"--partition={partition}: there are no partitions here; it is a label of the job")
        return None

    def _image(self) -> str | None:
        image: str | None = self.asked["--container-image"]
        return None if image is None else image.removeprefix("docker://").replace("#", "/")

    def _after(self) -> tuple[str, ...]:
        """The jobs that have to succeed first. Others cannot be waited for: starting without would be wrong."""
        said = self.asked["--dependency"]
        found: list[str] = []
        for part in (said or "").split(","):
            kind, *ids = part.split(":")
            if part and (kind != "afterok" or not ids or "?" in part):
                raise click.UsageError(
                    f"--dependency={said}: a job can wait for others to succeed, afterok:JOB, and for nothing else;"
                    " for singleton: actorgrid lock run"
                )
            found.extend(ids)
        return tuple(found)

    def _variables(self) -> dict[str, str]:
        """Slurm's variables that are known before the job starts; others ``batch.PROLOGUE`` sets."""
        asked = self.asked
        found = {
            "SLURM_CLUSTER_NAME": "actorgrid",
            "SLURM_SUBMIT_DIR": os.getcwd(),
            "SLURM_SUBMIT_HOST": socket.gethostname(),
            "SLURM_JOB_NAME": str(self.options["name"]),
            "SLURM_NTASKS": str(self.members),
            "SLURM_NPROCS": str(self.members),
            "SLURM_NNODES": str(self.nodes),
            "SLURM_JOB_NUM_NODES": str(self.nodes),
            "SLURM_JOB_PARTITION": asked["--partition"] or "actorgrid",
            "SLURM_JOB_ACCOUNT": asked["--account"] or "",
        }
        if asked["--cpus-per-task"] is not None:
            found["SLURM_CPUS_PER_TASK"] = str(self.cpus)
        if self.options["gpus"]:
            found["SLURM_GPUS_ON_NODE"] = f"{self.options['gpus']:g}"
        return found


def _members(asked: Asked) -> tuple[int, int, bool]:
    """How many tasks, on how many nodes, and whether each is to be on a node of its own."""
    nodes, tasks = whole("--nodes", asked["--nodes"]), whole("--ntasks", asked["--ntasks"])
    per_node = whole("--ntasks-per-node", asked["--ntasks-per-node"])
    members = tasks or (nodes or 1) * (per_node or 1)
    if members > 256:
        raise click.UsageError(f"{members} tasks are too many: a gang has at most 256 members")
    return members, nodes or 1, members > 1 and nodes == members


def _shared(gpus: int, members: int) -> float:
    """GPUs of each of *members*, who share so many. Raises UsageError for what cannot be shared out."""
    each = gpus / members
    if each > 1 and not each.is_integer():
        raise click.UsageError(f"{gpus} GPUs for {members} tasks are neither a share nor a number of GPUs for each")
    return each


def interpreter_of(script: str) -> list[str]:
    """The words of the script's first line; Slurm wants one. Raises UsageError."""
    first = script.split("\n", 1)[0]
    if not first.startswith("#!") or not first[2:].split():
        raise click.UsageError("a batch script begins with #! and its interpreter, for example #!/bin/bash")
    words = first[2:].split()
    return words[1:] if os.path.basename(words[0]) == "env" and len(words) > 1 else words
