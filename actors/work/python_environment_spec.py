"""How work comes to the Python environment that it asks for: what its spec says, and how that is made true."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from actorgrid.actors.ledger.record_types import JobRecord
from actorgrid.configs.paths import HostPaths
from actorgrid.digests import is_digest
from actorgrid.python_environment import VARIABLE

from .built_environments import BuildProgress, BuiltEnvironment, BuiltEnvironments
from .isolation.user_environments import hold_environments
from .work_records import EnvironmentLimits, EnvironmentSpec, WorkSpec

if TYPE_CHECKING:
    from actorgrid.configs.schema import Settings  # not loaded: workers in other Pythons have no pydantic


def limits_of(paths: HostPaths, settings: Settings) -> EnvironmentLimits:
    """Where environments are kept on this host, and within which bounds, for a process that has no settings."""
    return {
        "folder": str(paths.environments_dir),
        "count_max": settings.work.environments_max,
        "bytes_max": settings.work.environments_bytes_max,
        "build_s": settings.work.environment_build_s,
    }


def environments_in(wanted: EnvironmentLimits) -> BuiltEnvironments:
    """The environments of this host, by what ``limits_of`` gave."""
    return BuiltEnvironments(Path(wanted["folder"]), wanted["count_max"], wanted["bytes_max"], wanted["build_s"])


def environment_of_job(job: JobRecord) -> str:
    """The digest of the environment that the job asks for; empty when it asks for none."""
    digest = job.get("environment") or ""
    return digest if is_digest(digest) else ""


def asked_of(digest: str, paths: HostPaths, settings: Settings) -> EnvironmentSpec:
    """What the spec of work says of the environment of that digest."""
    return {**limits_of(paths, settings), "digest": digest, "path": str(paths.blobs_dir / digest)}


def hold_python_environment(spec: WorkSpec) -> None:
    """Keep the work's environment from being removed, for as long as this process lives; at ``full`` its user's folder
    of them, of which its own process holds the one that it needs: nothing in there is for us to open."""
    wanted, of_user = spec.get("environment"), spec.get("apart", {}).get("environments")
    if of_user:
        hold_environments(Path(of_user))
    elif wanted:
        environments_in(wanted).hold(wanted["digest"])


def prepare_environment(spec: WorkSpec, say: Callable[[str], None]) -> BuiltEnvironment | None:
    """Have the work's environment there, and its variables in the spec; ``None`` where it asks for none.

    At ``full`` it is held by what this process becomes, too. Raises EnvironmentFailed, MalformedBody, DiskFull,
    OSError.
    """
    wanted = spec.get("environment")
    if not wanted:
        return None
    kept = environments_in(wanted)
    if spec.get("apart", {}).get("environments"):
        os.set_inheritable(kept.hold(wanted["digest"]), True)
    secrets = spec["secrets"]["variables"] if "secrets" in spec else {}
    work = {name: value for name, value in spec["env"].items() if name not in secrets}  # a build has no use for them
    environment = kept.get(wanted["digest"], Path(wanted["path"]).read_bytes, work, BuildProgress(say))
    enter_environment(environment, spec["env"])
    return environment


def enter_environment(environment: BuiltEnvironment, env: dict[str, str]) -> None:
    """Put the variables of *environment* into *env*, where they may be already."""
    if not env.get("PATH", "").startswith(f"{os.path.dirname(environment.python)}{os.pathsep}"):
        env |= environment.variables(env)
    env[VARIABLE] = environment.folder or os.path.dirname(environment.python)
    env.pop("PYTHONHOME", None)
