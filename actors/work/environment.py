"""What a process that runs users' work sees: its variables, and which devices."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from actorgrid.actors.ledger.record_types import DeviceRecord
from actorgrid.checkpoints import VARIABLES as CHECKPOINT_VARIABLES
from actorgrid.fencing import FencingToken
from actorgrid.task_context import ATTEMPT_NUMBER, CPU_MILLI, CREDENTIAL_FILE, JOB_ID, LEASE_ID, LENT_CPU_MILLI, TOKEN

from .linux import MARK_ATTEMPT, MARK_HOST

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"  # of the workers: they run our interpreter

# Passed on from the agent's environment; everything else (tokens, agent sockets, keys) stays behind.
_PASSED_ON = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "TMPDIR", "LD_LIBRARY_PATH"}
    | {"VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH", "ROCM_PATH", "ROCM_HOME", "ONEAPI_ROOT"}
    | {"HF_HOME", "TORCH_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"}
    | {"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "http_proxy", "https_proxy", "no_proxy"}
    | {"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"}
)

OF_GRANT = (TOKEN, ATTEMPT_NUMBER, JOB_ID, LEASE_ID, CREDENTIAL_FILE, CPU_MILLI)

# The variable by which each vendor's runtime is told its devices.
VISIBLE = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "ROCR_VISIBLE_DEVICES", "intel": "ZE_AFFINITY_MASK"}


_ROCR_NAME = re.compile(r"GPU-[0-9a-f]{16}")
"""A device as ROCR_VISIBLE_DEVICES takes it by name: all others it knows by their place alone."""


def host_tag(data_dir: Path) -> str:
    """A tag that tells the work of this data directory from that of other agents on the machine."""
    return hashlib.sha256(os.fsencode(os.path.realpath(data_dir))).hexdigest()[:16]


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of the agent's environment that users' work may see."""
    return {name: value for name, value in environment.items() if name in _PASSED_ON or name.startswith("LC_")}


@cache
def agent_variables() -> Mapping[str, str]:
    """What work sees of this process's environment, as it was when work was begun first: to look for it takes as long
    as a short call."""
    return passed_on(os.environ)


def device_variables(host_devices: Iterable[DeviceRecord], granted: Iterable[str]) -> dict[str, str]:
    """Visible-device variables for the granted UUIDs, out of all devices of the host.

    Each vendor's variable is always set: empty when nothing of that vendor was granted, so that work without
    GPUs sees none. Level Zero counts devices by position, so its mask holds positions among Intel's, in the order of
    the bus. So does ROCm where a device has no name of its own that it takes (consumers' cards, parts of a device).
    """
    wanted = list(granted)
    devices = sorted(host_devices, key=lambda device: int(device["index"]))
    vendors = {str(device["uuid"]): str(device["vendor"]) for device in devices}
    intel = [str(device["uuid"]) for device in _on_the_bus(devices, "intel")]
    amd = [str(device["uuid"]) for device in _on_the_bus(devices, "amd")]
    variables = dict.fromkeys(VISIBLE.values(), "")
    variables[VISIBLE["nvidia"]] = ",".join(uuid for uuid in wanted if vendors.get(uuid) == "nvidia")
    granted_amd = [uuid for uuid in wanted if vendors.get(uuid) == "amd"]
    named = all(_ROCR_NAME.fullmatch(uuid) or uuid.startswith("GPU-sim") for uuid in granted_amd)
    variables[VISIBLE["amd"]] = ",".join(uuid if named else str(amd.index(uuid)) for uuid in granted_amd)
    variables[VISIBLE["intel"]] = ",".join(str(intel.index(uuid)) for uuid in wanted if uuid in intel)
    variables["ZE_FLAT_DEVICE_HIERARCHY"] = "COMPOSITE"
    variables["ZE_ENABLE_PCI_ID_DEVICE_ORDER"] = "1"
    variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    variables["ACTORGRID_DEVICES"] = ",".join(wanted)
    return variables


def _on_the_bus(devices: Iterable[DeviceRecord], vendor: str) -> list[DeviceRecord]:
    """The devices of *vendor* in the order of their places on the bus: that in which its runtime counts them."""
    own = [device for device in devices if device["vendor"] == vendor]
    return sorted(own, key=lambda device: (str(device.get("pcie_bus_id") or ""), int(device["index"])))


def by_vendor(host_devices: Iterable[DeviceRecord], granted: Iterable[str]) -> dict[str, list[str]]:
    """The granted UUIDs of devices that are there, by vendor: simulated and declared ones cannot be handed on."""
    wanted, found = set(granted), dict[str, list[str]]()
    for device in host_devices:
        if device["uuid"] in wanted and device.get("source") == "probed":
            found.setdefault(str(device["vendor"]), []).append(str(device["uuid"]))
    return found


def work_environment(
    agent: Mapping[str, str],
    user: Mapping[str, str],
    devices: Mapping[str, str],
    *,
    host_tag: str,
    work_id: str,
    token: Sequence[int] = (),
    attempt_number: int = 1,
    job_id: str = "",
    lease_id: str = "",
    cpu_milli: int = 0,
    grace_s: float | None = None,
    credential_file: Path | None = None,
) -> dict[str, str]:
    """The whole environment of a process of users' work. The user's values win over the agent's, ours over both.

    *token* is that of the grant it runs under; a worker that nobody has leased yet has none. *grace_s* is how long it
    has between SIGTERM and SIGKILL when it is preempted; ``None``: it is not. *credential_file*: where clients in it
    find this host's door.
    """
    variables = passed_on(agent)
    variables["PATH"] = with_own_commands(variables.get("PATH", os.defpath))
    variables["PYTHONUNBUFFERED"] = "1"  # output is a pipe: without it, lines of a Python program arrive late
    if cpu_milli:
        variables["OMP_NUM_THREADS"] = str(max(1, cpu_milli // 1000))
    variables.update(user)
    variables.update(devices)
    variables[MARK_ATTEMPT] = work_id
    variables[MARK_HOST] = host_tag
    for name in (*OF_GRANT, *CHECKPOINT_VARIABLES):
        variables.pop(name, None)  # a job submitted from within a job may bring its submitter's along
    if not lease_id:
        variables.pop(LENT_CPU_MILLI, None)  # only leases are of CPUs that a waiting task lends
    if cpu_milli:
        variables[CPU_MILLI] = str(cpu_milli)
    if token:
        variables[TOKEN] = str(FencingToken(*token))
        variables[ATTEMPT_NUMBER] = str(attempt_number)
    if job_id:
        variables[JOB_ID] = job_id
    if lease_id:
        variables[LEASE_ID] = lease_id
    if credential_file is not None:
        variables[CREDENTIAL_FILE] = str(credential_file)
    if grace_s is not None:
        variables["ACTORGRID_GRACE_S"] = f"{grace_s:g}"
    return variables


def with_own_commands(path: str, folder: str = os.path.dirname(sys.executable)) -> str:
    """*path* with the *folder* of our own ``actorgrid`` command behind all others, where there is one."""
    known = path.split(os.pathsep)
    return path if folder in known or not os.path.exists(os.path.join(folder, "actorgrid")) else f"{path}:{folder}"


def use_environment(environment: dict[str, str]) -> None:
    """Make *environment* the process's own, and let PYTHONPATH in it count as it would have at start."""
    os.environ.clear()
    os.environ.update(environment)
    for entry in reversed(environment.get("PYTHONPATH", "").split(os.pathsep)):
        if entry and entry not in sys.path:
            sys.path.insert(0, entry)
