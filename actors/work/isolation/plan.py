"""How far the work of an attempt or a worker is kept apart: by the setting, whose it is, and what this host can do."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from actorgrid.actors.ledger.isolation_records import KeptApartRecord, Level, Setting
from actorgrid.actors.ledger.kept_apart import level_of, min_isolation_of, wanted_level, why_not_full
from actorgrid.actors.ledger.record_types import JobRecord
from actorgrid.configs.paths import HostPaths
from actorgrid.errors import IsolationNotGiven
from actorgrid.isolation_words import lacking

from ..apart_records import ApartSpec
from ..checkpoint_spec import own_checkpoint
from ..containers_apart import runtime_variables
from ..item_spool import OWN_ITEMS
from ..work_records import WorkSpec
from ..working_dir_spec import give_own_cwd
from .confine import lies_in
from .own_folders import HOME, INPUTS, OWN_CWD, TAKERS, TMP
from .own_sockets import sockets_spec
from .uids import WorkUids
from .user_environments import environments_of


@cache
def hidden_paths(paths: HostPaths) -> tuple[tuple[str, str], ...]:
    """What work has no use for, and the agent's keys and records are in: hidden from all work. Each also resolved.

    Once for a host: each part of a path is a question to the kernel, and every attempt comes by here.
    """
    return tuple(
        (str(path), os.path.realpath(path))
        for path in (
            paths.security_dir,
            paths.token_file,
            paths.work_key_file,
            paths.ledger_dir,
            paths.state_dir,
            paths.audit_dir,
            paths.start_file,
            paths.log_file,
        )
    )


def basic_spec(setting: Setting, paths: HostPaths, cwd: str = "/") -> ApartSpec | None:
    """What the spec says of work that is kept apart a little; None where nothing is done.

    What takes no_new_privs is root, to whom it means nothing: another user may need sudo, or newuidmap for a container.
    """
    if setting == "off":
        return None
    as_root = os.geteuid() == 0
    real_cwd = os.path.realpath(cwd)
    return {
        "level": "basic",
        "hidden": [path for path, real in hidden_paths(paths) if not lies_in(real_cwd, real)] if as_root else [],
        "no_new_privs": as_root,
        "uid": 0,
        "attempt": "",
        "read": [],
        "gang": False,
    }


def keep_apart(
    spec: WorkSpec,
    job: JobRecord,
    kept: KeptApartRecord,
    paths: HostPaths,
    uids: WorkUids,
    *,
    missing: str,
    mps: bool,
    default_cwd: bool,
) -> Level:
    """Add to the spec of an attempt of *job* how it is kept apart, on a host that says *kept*; gives how far.

    Raises IsolationNotGiven where the setting is ``full`` and this work cannot have that, where less is enforced than
    it asks for, and for a container that cannot have what other work of its user has; other work has ``basic``.

    *missing*: what the host lacks for ``full``, for people. *mps*: whether it has a share under MPS.
    *default_cwd*: whether its directory was chosen for it.
    """
    level = level_of(kept, job, mps=mps)
    asked = min_isolation_of(job)
    why = why_not_full(job, kept, mps=mps) if "full" in kept["levels"] else missing
    if kept["setting"] == "full" and level != "full":
        raise _not_given("work.isolation = full", why)
    short = lacking(asked, kept["levels"].get(level, {}), but=("gpu_memory",)) if asked else []
    if short:
        raise _not_given(f"min_isolation = {asked}", "; ".join([*short, *([why] if level != "full" and why else [])]))
    if level == "full":
        uid = uids.uid_of(job["user_id"]) if os.geteuid() == 0 else 0
        _full(spec, uid, paths, default_cwd, job["user_id"])
        if mps:
            spec["apart"]["shared_memory"] = str(paths.shared_memory_dir(uid))
        if "container" in spec:
            spec["apart"].pop("sockets", None)  # it does not see them
            spec["container"]["runtime_env"] = runtime_variables(os.environ)
        return "full"
    if "container" in spec and "full" in kept["levels"] and wanted_level(kept, job) == "full":
        # Its runtime has what the agent has, and would mount the agent's keys or another's files for who asks for it.
        raise _not_given("a container of work that this host keeps apart", why)
    if "container" in spec:
        return "off"  # its runtime mounts what it needs, and may need newuidmap for it
    apart = basic_spec("off" if level == "off" else "basic", paths, spec["cwd"])
    if apart is None:
        return "off"
    spec["apart"] = apart
    return "basic"


def _not_given(asked: str, found: str) -> IsolationNotGiven:
    return IsolationNotGiven(
        "this work cannot be kept apart here as it is to be",
        asked=asked,
        found=found,
        hint="actorgrid doctor says what the host can; docs/trust.md, what full keeps from what",
    )


def _full(spec: WorkSpec, uid: int, paths: HostPaths, default_cwd: bool, user: str) -> None:
    folder = paths.attempts_dir / spec["id"]
    home = folder / HOME
    read: list[str] = []
    if spec["kind"] == "function":
        function = spec["function"]
        read = [function["payload_path"], *function["inputs"].values()]
        function["result_path"] = str(home / Path(function["result_path"]).name)
        if not uid:
            function.pop("objects", None)  # it makes no sockets to come to the store
        if "steps" in function:
            function["items"] = {"path": str(home / OWN_ITEMS), "takers": str(folder / TAKERS)}
    former_cwd = spec["cwd"]
    if default_cwd:
        spec["cwd"] = str(home)
    give_own_cwd(spec, folder / OWN_CWD)  # the host's own is for nobody to enter
    spec["env"] = own_variables(spec["env"], folder, user, uid)
    spec["apart"] = full_spec(folder, uid, paths, read)
    own_checkpoint(spec, spec["apart"], former_cwd)
    environment = spec.get("environment")
    if environment:
        environment["folder"] = spec["apart"]["environments"] = str(environments_of(paths, uid, user))
        read.append(environment["path"])
    if uid:
        spec["apart"]["shared_memory_bytes"] = spec["memory_bytes"]
    if inputs := _own_inputs(spec, folder):
        spec["apart"]["inputs"] = inputs
    if "function" in spec and "steps" in spec["function"]:
        spec["apart"]["takers"] = True
    if uid and "secrets" in spec:
        spec["apart"]["secrets"] = spec["secrets"]["folder"]
    spec["apart"]["gang"] = "RANK" in spec["env"] and spec["env"].get("WORLD_SIZE", "1") != "1"


def _own_inputs(spec: WorkSpec, folder: Path) -> dict[str, str]:
    """Have its steps read what they take in the attempt's *folder*; gives where that is, by the names there."""
    places = spec["step"]["takes"] if "step" in spec else []
    if "function" in spec:
        places = [*places, *spec["function"].get("step_inputs", {}).values()]
    names: dict[str, str] = {}
    for place in places:
        place[0] = str(folder / INPUTS / names.setdefault(str(place[0]), str(len(names))))
    return {name: source for source, name in names.items()}


def keep_worker_apart(spec: WorkSpec, uid: int, user: str, paths: HostPaths, *, mps: bool) -> None:
    """Add to the spec of a worker of sessions that it is *user*'s, and so of that *uid*, from its start.

    *mps*: whether it may be lent to who has a share under MPS; who that is, is not known yet.
    """
    folder = paths.workers_dir / spec["id"]
    home = folder / HOME
    spec["cwd"] = str(home)
    spec["env"] = own_variables(spec["env"], folder, user, uid)
    spec["apart"] = full_spec(folder, uid, paths, [])
    if mps:
        spec["apart"]["shared_memory"] = str(paths.shared_memory_dir(uid))
    # What the host has of these was made by others, and is shared with others.
    spec["worker"]["working_dirs"] = str(home / ".cache" / "actorgrid" / "working_dirs")
    own = str(environments_of(paths, uid, user))
    spec["worker"]["environments"]["folder"] = spec["apart"]["environments"] = own


def own_variables(env: dict[str, str], folder: Path, user: str, uid: int) -> dict[str, str]:
    """The variables of work that is kept apart in *folder*, instead of those of the agent's user in *env*."""
    home = str(folder / HOME)
    # The agent's, which the work cannot enter.
    agents = ("TMPDIR", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR")
    kept = {name: value for name, value in env.items() if name not in agents}
    if not uid:
        kept["TMPDIR"] = str(folder / TMP)  # without mounts, /tmp is everybody's
    return {**kept, "HOME": home, "USER": user, "LOGNAME": user}


def full_spec(folder: Path, uid: int, paths: HostPaths, read: list[str]) -> ApartSpec:
    """What the spec says of work at full, whose own folder that is. *read*: files of the agent that it reads."""
    spec: ApartSpec = {
        "level": "full",
        "hidden": [str(paths.data_dir), str(paths.runtime_dir)],
        "no_new_privs": True,
        "uid": uid,
        "attempt": str(folder),
        "read": read,
        "gang": False,
    }
    if uid:
        spec["sockets"] = sockets_spec(paths, uid)
    return spec
