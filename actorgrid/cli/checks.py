"""What ``doctor`` looks at: one function per subject, each giving findings with a fix where one is needed."""

from __future__ import annotations

import os
import platform
import socket
import stat
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from actorgrid.configs.paths import HostPaths
from actorgrid.errors import ActorGridError, ConfigError, HostUnreachable, WrongState

from .call import CommandContext
from .show import size

MIN_PYTHON = (3, 11)
MIN_OPEN_FILES = 1024
SYNC_ROUNDS = 16
SLOW_SYNC_S = 0.02
LATE_S = 15 * 86_400
"""A certificate with less left than this should have been renewed long ago."""
VENDORS = {
    # library, device node that says there is hardware, extra that reads it
    "nvidia": ("libnvidia-ml.so.1", "/dev/nvidiactl", "actorgrid[nvidia]"),
    "amd": ("libamd_smi.so", "/dev/kfd", "actorgrid[amd]"),
    "intel": ("libze_loader.so.1", "/dev/dri/renderD128", "actorgrid[intel]"),
}
LOOK_S = 10.0
"""A vendor's library that says nothing in this time is not waited for."""
LIBRARY_DIRS = ("/usr/lib/wsl/lib", "/opt/rocm/lib", "/usr/local/cuda/lib64")


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding of one check. A ``note`` is worth knowing; a ``problem`` needs its ``fix``."""

    name: str
    level: Literal["ok", "note", "problem"]
    text: str
    fix: str = ""

    def to_dict(self) -> dict[str, str]:
        """Plain values."""
        return asdict(self)


@dataclass(slots=True)
class DoctorReport:
    """All findings, and the settings with their origins (none when they could not be read)."""

    findings: list[Finding] = field(default_factory=list)
    settings: list[dict[str, Any]] = field(default_factory=list)
    running: bool = False

    def value(self, key: str, default: Any) -> Any:
        """A setting's value, or *default* where settings could not be read."""
        return next((entry["value"] for entry in self.settings if entry["key"] == key), default)


def check_all(call: CommandContext, config_dir: Path | None) -> DoctorReport:
    """Run all checks."""
    report = DoctorReport()
    paths = HostPaths(call.resolved_data_dir)
    report.findings += [*check_python(), *check_hotpath()]
    report.findings += check_agent(call, report)
    report.findings += check_configuration(call, config_dir, report)
    report.findings += check_data_dir(paths, int(report.value("performance.min_free_bytes", 0)))
    if not report.running:
        bind, port = str(report.value("cluster.bind", "127.0.0.1")), int(report.value("cluster.base_port", 7400))
        report.findings += check_port(bind, port)
    if report.running:
        report.findings += [*check_inventory(call), *check_measured(call), *check_trust(call), *check_keys(call)]
    # What files say of a vendor's library is of use only where no probe has asked it.
    report.findings += check_probes(call) if report.running else [*check_vendors(), *check_libraries()]
    report.findings += [*check_enforcement(str(report.value("gpus.memory_watch", "end"))), *check_cgroup()]
    report.findings += check_containment(str(report.value("work.containment", "auto")))
    if report.running:
        from .path_checks import check_paths

        report.findings += check_paths(call)
    from .isolation_checks import check_isolation, check_tenancy
    from .plug_in_checks import check_grpc, check_oidc, check_work_types
    from .rdma_checks import check_rdma

    report.findings += [*check_isolation(), *check_tenancy(str(report.value("work.isolation", "auto")))]
    report.findings += [*check_clock(), *check_limits(), *check_work_types()]
    report.findings += check_grpc(str(report.value("grpc.listen", "")))
    report.findings += check_oidc(str(report.value("oidc.issuer", "")))
    device = str(report.value("transports.rdma_device", ""))
    report.findings += check_rdma(bool(report.value("transports.rdma", False)), device)
    return report


def check_python() -> Iterator[Finding]:
    """Check the Python's version and virtual environment."""
    version = platform.python_version()
    if sys.version_info < MIN_PYTHON:
        yield Finding("python", "problem", version, "install Python 3.11 or newer and build the venv anew: make venv")
        return
    where = (
        f"in the virtual environment {sys.prefix}" if sys.prefix != sys.base_prefix else f"of the system ({sys.prefix})"
    )
    yield Finding("python", "ok", f"{version}, {where}")


def check_hotpath() -> Iterator[Finding]:
    """Whether placement runs compiled, and why not."""
    try:
        from actorgrid import hotpath
    except ImportError as error:
        yield Finding("hot path", "problem", f"does not load: {error}", "build it anew: make clean venv")
        return
    if hotpath.COMPILED:
        yield Finding("hot path", "ok", "compiled")
    elif os.environ.get("ACTORGRID_PURE_PYTHON") == "1":
        yield Finding("hot path", "note", "plain Python (ACTORGRID_PURE_PYTHON=1)", "unset it to use the kernels")
    else:
        fix = "install a C compiler and Python's headers (apt install build-essential python3-dev), then make venv"
        yield Finding("hot path", "note", "plain Python: no compiled kernels were built (slower, same answers)", fix)


def check_agent(call: CommandContext, report: DoctorReport) -> Iterator[Finding]:
    """Whether an agent runs there, answers, knows us, and is ready. Fills in the live settings."""
    from actorgrid.client.find import locate

    try:
        url, _ = locate(call.data_dir, call.url)
    except HostUnreachable as error:
        gone = "is gone" in error.message
        yield Finding("agent", "note", f"none runs: {error.message}", error.hint if gone else "actorgrid up starts one")
        return
    try:
        health = call.http.request("GET", "/api/cluster", timeout_s=20.0)
        report.settings = call.http.get("/api/config")["settings"]
        report.running = True
    except ActorGridError as error:
        yield Finding("agent", "problem", f"{url}: {error.message}", error.hint or "actorgrid up")
        return
    yield Finding("agent", "ok", f"answers at {url}, {health.get('health', 'ready')}")
    for each in health.get("findings", ()):
        level: Literal["note", "problem"] = "note" if each["level"] == "note" else "problem"
        yield Finding("cluster", level, f"{each['what']}: {each['found']}", str(each["try"]))


def check_configuration(call: CommandContext, config_dir: Path | None, report: DoctorReport) -> Iterator[Finding]:
    """Whether files, environment and .env can be read. Fills in the settings when no agent gave them."""
    from .config import settings_of_files

    try:
        settings = settings_of_files(call, config_dir)
    except ConfigError as error:
        yield Finding("configuration", "problem", error.message, error.hint)
        return
    shown = report.settings if report.running else settings
    changed = [entry for entry in shown if entry["origin"] != "default"]
    yield Finding("configuration", "ok", f"{len(changed)} of {len(shown)} settings are not at their default")
    if not report.running:
        report.settings = settings
        return
    running = {entry["key"]: entry for entry in report.settings}
    for entry in settings:
        now = running.get(entry["key"])
        if now and now["value"] != entry["value"] and now["origin"] != "live" and not now["origin"].startswith("--"):
            text = f"{entry['key']} runs as {now['value']!r}, {entry['origin']} now says {entry['value']!r}"
            yield Finding("configuration", "note", text, "restart the agent to take it over")


def check_data_dir(paths: HostPaths, min_free_bytes: int) -> Iterator[Finding]:
    """Check the owner, permissions, room and speed of the data directory's disk."""
    folder = paths.data_dir
    try:
        found = folder.stat()
    except FileNotFoundError:
        parent = next(above for above in folder.parents if above.exists())
        if os.access(parent, os.W_OK | os.X_OK):
            yield Finding("data dir", "ok", f"{folder} does not exist yet; up makes it")
            yield from _check_disk(parent, min_free_bytes)
        else:
            yield Finding(
                "data dir", "problem", f"{folder} cannot be made: no right to write {parent}", "give --data-dir DIR"
            )
        return
    except OSError as error:
        yield Finding(
            "data dir", "problem", f"{folder}: {error.strerror}", "give --data-dir DIR, or mend its permissions"
        )
        return
    if not stat.S_ISDIR(found.st_mode):
        yield Finding("data dir", "problem", f"{folder} is not a directory", "give --data-dir DIR")
        return
    if found.st_uid != os.getuid():
        text = f"{folder} belongs to uid {found.st_uid}, we are {os.getuid()}"
        yield Finding("data dir", "problem", text, "run as its owner, or give --data-dir DIR")
        return
    if stat.S_IMODE(found.st_mode) & 0o077:
        yield Finding("data dir", "problem", f"others may look into {folder}", f"chmod 700 {folder}")
    else:
        yield Finding("data dir", "ok", f"{folder}, ours alone")
    token = paths.token_file
    if token.exists() and stat.S_IMODE(token.stat().st_mode) & 0o077:
        yield Finding("token", "problem", f"others may read {token}", f"chmod 600 {token}")
    yield from _check_disk(folder, min_free_bytes)


def _check_disk(folder: Path, min_free_bytes: int) -> Iterator[Finding]:
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if free < min_free_bytes:
        text = f"{size(free)} free, new work is refused below {size(min_free_bytes)}"
        yield Finding("disk", "problem", text, "make room, or lower performance.min_free_bytes")
    else:
        yield Finding("disk", "ok", f"{size(free)} free")
    if disk.f_ffree == 0 and disk.f_files:
        yield Finding("disk", "problem", "no inodes are left", "remove files you do not need")
    try:
        median_s = sync_time_s(folder)
    except OSError as error:
        yield Finding(
            "fsync", "problem", f"fails in {folder}: {error.strerror}", "mend the disk, or give --data-dir DIR"
        )
        return
    text = f"{median_s * 1000:.2f} ms (median of {SYNC_ROUNDS}); an accepted job costs about one"
    if median_s > SLOW_SYNC_S:
        yield Finding("fsync", "note", text, "a local SSD makes accepting work faster; network disks are slow here")
    else:
        yield Finding("fsync", "ok", text)


def sync_time_s(folder: Path) -> float:
    """Median time of a 4 KiB write with fdatasync in *folder*; the file is nameless and gone afterwards."""
    import tempfile

    times = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(SYNC_ROUNDS):
            begin = time.perf_counter()
            os.write(file.fileno(), bytes(4096))
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - begin)
    return sorted(times)[len(times) // 2]


def check_port(bind: str, port: int) -> Iterator[Finding]:
    """Whether an agent could listen there. Asked only when ours does not run."""
    if port == 0:
        yield Finding("port", "ok", "any free one")
        return
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((bind, port))
        except OSError as error:
            text = f"{bind}:{port}: {error.strerror}{_holder(port)}"
            yield Finding("port", "problem", text, "actorgrid up --port 0 takes a free one; cluster.base_port sets it")
            return
    yield Finding("port", "ok", f"{bind}:{port} is free")


def _holder(port: int) -> str:
    import psutil

    try:
        for entry in psutil.net_connections(kind="tcp"):
            if entry.status == psutil.CONN_LISTEN and entry.laddr and entry.laddr.port == port and entry.pid:
                return f" (held by process {entry.pid}, {psutil.Process(entry.pid).name()})"
    except psutil.Error:
        return ""
    return ""


def check_vendors() -> Iterator[Finding]:
    """Check GPU libraries and devices, by their files alone: nothing is loaded, as a driver call may hang."""
    found = False
    for vendor, (library, node, extra) in VENDORS.items():
        path, device = find_library(library), os.path.exists(node)
        if device and not path:
            fix = f"install the vendor's management library, then pip install '{extra}'"
            yield Finding("gpus", "note", f"{vendor}: {node} is there, but {library} is not", fix)
        elif path and not device:
            yield Finding(
                "gpus", "note", f"{vendor}: {path} is there, but {node} is not: no device, or no driver loaded"
            )
        elif path:
            found = True
            yield Finding("gpus", "ok", f"{vendor}: {path}")
    if not found:
        yield Finding(
            "gpus", "note", "no vendor library with a device: GPUs are simulated unless gpus.source says otherwise"
        )


def check_probes(call: CommandContext) -> Iterator[Finding]:
    """Check what the running agent's probes found, one line for each vendor that it asks."""
    try:
        told = call.http.get("/api/inspect/gpu_coordinator")["inspect"] or {}
    except ActorGridError:
        return  # an agent that does not say is told elsewhere
    for vendor, asked in sorted(told.get("status", {}).get("probe", {}).get("vendors", {}).items()):
        yield _of_library(vendor, str(asked["outcome"]), int(asked["devices"]), asked)


def check_libraries() -> Iterator[Finding]:
    """Check each vendor's library of which there is a sign, in a process of its own that may be killed."""
    from actorgrid.actors.gpu.inventory import VENDORS as ASKED
    from actorgrid.actors.gpu.inventory import traces
    from actorgrid.actors.gpu.probe import look_once

    for vendor in ASKED:
        worth_it, _ = traces(vendor)
        if worth_it:
            report = look_once(vendor, LOOK_S)
            said = {"message": report.message, "binding": report.binding, "driver_version": report.driver_version}
            yield _of_library(vendor, report.outcome, len(report.devices), said)
            for problem in report.problems:
                yield Finding("gpus", "note", f"{vendor}: {problem}")


def _of_library(vendor: str, outcome: str, devices: int, said: dict[str, Any]) -> Finding:
    """What one vendor's library said, and what to do about it."""
    through = f" through {said['binding']}" if said.get("binding") else ""
    if outcome == "ok":
        driver = f", driver {said['driver_version']}" if said.get("driver_version") else ""
        return Finding("gpus", "ok", f"{vendor}: {devices} devices{through}{driver}")
    why = f" ({said['message']})" if said.get("message") else ""
    fix = {
        "no_library": f"pip install 'actorgrid[{vendor}]', and the vendor's management library",
        "version_mismatch": "library, driver and binding are of different versions: install fitting ones",
        "no_driver": "load the vendor's driver; its own tool says more",
        "no_permission": "let the agent's user open the device files (groups video and render)",
    }.get(outcome, "")
    return Finding("gpus", "note", f"{vendor}: {outcome}{why}", fix)


def check_inventory(call: CommandContext) -> Iterator[Finding]:
    """Check which GPUs the running agent gives out."""
    try:
        devices = call.http.get("/api/gpus")["gpus"]
    except ActorGridError as error:
        yield Finding("gpus", "problem", f"the agent does not list them: {error.message}", "actorgrid inspect")
        return
    kinds = Counter((str(device["model"]), str(device["source"])) for device in devices)
    text = ", ".join(f"{count} x {model} ({source})" for (model, source), count in kinds.items())
    level: Literal["ok", "note"] = "ok" if all(source == "probed" for _, source in kinds) else "note"
    yield Finding("gpus", level, f"the agent gives out {text or 'none'}")


def check_measured(call: CommandContext) -> Iterator[Finding]:
    """Check what the hosts of a cluster measured of their disks and their network."""
    try:
        hosts = call.http.get("/api/hosts")["hosts"]
    except ActorGridError as error:
        yield Finding("hosts", "problem", f"the agent does not list them: {error.message}", "actorgrid inspect")
        return
    for host in hosts:
        found = host.get("measured")
        if not found:
            continue
        parts = []
        if "fdatasync_ms" in found:
            parts.append(f"fdatasync {found['fdatasync_ms']:g} ms, writes {found['write_mb_per_s']:g} MB/s")
        if "round_trip_ms" in found:
            parts.append(f"network {found['round_trip_ms']:g} ms, {found['network_mb_per_s']:g} MB/s")
        slow = found.get("fdatasync_ms", 0.0) > 1000 * SLOW_SYNC_S
        fix = "the ledger waits for this disk at every commit: put the data directory on a faster one" if slow else ""
        yield Finding("host", "note" if slow else "ok", f"{host['hostname']}: {'; '.join(parts)}", fix)


def check_trust(call: CommandContext) -> Iterator[Finding]:
    """Whether the certificates of a cluster's hosts, and its authority, have time left."""
    try:
        found = call.http.get("/api/ca")
    except WrongState:
        return  # a host that is alone has none
    except ActorGridError as error:
        yield Finding("certificates", "problem", f"the agent does not say: {error.message}", "actorgrid inspect")
        return
    now = time.time()
    late = [host for host in found["hosts"] if host["valid_until"] and host["valid_until"] - now < LATE_S]
    if late:
        names = ", ".join(host["node_id"] for host in late[:3])
        fix = "start them where they are off; else actorgrid ca renew there, and their agent.log says why it fails"
        yield Finding("certificates", "problem", f"not renewed in time: {names} ({len(late)} hosts)", fix)
    elif found["rotation_due"]:
        yield Finding("certificates", "note", "the authority has less than a year left", "actorgrid ca rotate")
    else:
        yield Finding("certificates", "ok", f"of {len(found['hosts'])} hosts, renewed in time")


def check_enforcement(memory_watch: str = "end") -> Iterator[Finding]:
    """Check what holds work to its grant, and what only counts it; *memory_watch*: ``gpus.memory_watch``."""
    watched = {"end": "work that overdraws its GPU memory is ended", "report": "overdrawn GPU memory is only logged"}
    memory = watched.get(memory_watch, "GPU memory is counted, not watched")
    yield Finding("gpu limits", "note", f"whole GPUs by visibility; shares are counted, not enforced; {memory}")


def find_library(name: str) -> str | None:
    """The path of a shared library where the loader would look, or None."""
    override = os.environ.get("ACTORGRID_NVML_LIBRARY") if "nvidia" in name else None
    if override:
        return override if os.path.exists(override) else None
    machine = platform.machine()
    standard = [
        f"/usr/lib/{machine}-linux-gnu",
        f"/lib/{machine}-linux-gnu",
        "/usr/lib64",
        "/lib64",
        "/usr/lib",
        "/lib",
    ]
    folders = [*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *standard, "/usr/local/lib", *LIBRARY_DIRS]
    return next((path for folder in folders if folder and os.path.exists(path := os.path.join(folder, name))), None)


def check_cgroup() -> Iterator[Finding]:
    """Check what holds work to the memory it asked for."""
    from actorgrid.actors.work.limits import writable_cgroup

    folder = writable_cgroup()
    if folder is not None:
        yield Finding("cgroup", "ok", f"{folder} is writable: --memory is a hard limit")
    else:
        fix = "run the agent under systemd with Delegate=yes, or as root on a host with cgroup v2"
        yield Finding(
            "cgroup", "note", "none with a memory controller is writable: --memory is watched, not a hard limit", fix
        )


def check_containment(wanted: str = "auto") -> Iterator[Finding]:
    """Check what ends the processes that work forks; *wanted*: the setting ``work.containment``."""
    from actorgrid.actors.work.containment import choose

    kept = choose(wanted)
    why = f" ({kept.why})" if kept.why else ""
    limit = kept.limit(os.getuid())
    if not kept.holds:
        fix = "run the agent under systemd with Delegate=yes, or as root, or allow unprivileged user namespaces"
        yield Finding("containment", "note", f"{kept.text}{why}", fix)
    elif limit:
        fix = "work that is not trusted is held by: --set work.containment=pid_namespace"
        yield Finding("containment", "note", f"{kept.kind}: {kept.text}{why}; {limit}", fix)
    else:
        yield Finding("containment", "ok", f"{kept.kind}: {kept.text}{why}")


def check_keys(call: CommandContext) -> Iterator[Finding]:
    """Count the API keys that may do anything."""
    try:
        keys = call.http.get("/api/keys")["keys"]
    except ActorGridError:
        return  # whoever asks may not list them all
    now = time.time()
    good = [key for key in keys if key["revoked_at"] is None and now < key["expires_at"]]
    full = [key["id"] for key in good if (key.get("role", "admin"), key.get("tenant", "*")) == ("admin", "*")]
    if full:
        text = f"{len(full)} of {len(good)} are an administrator's of all tenants: {', '.join(full[:5])}"
        yield Finding("API keys", "note", text, "give roles: actorgrid key create --role user --tenant NAME")
    elif good:
        yield Finding("API keys", "ok", f"{len(good)}, each with a role in a tenant")


def check_clock() -> Iterator[Finding]:
    """Check the clock leases are counted on, and whether wall time is kept."""
    try:
        time.clock_gettime(time.CLOCK_BOOTTIME)
    except (AttributeError, OSError):
        yield Finding("clock", "problem", "no CLOCK_BOOTTIME: leases cannot be counted through a pause", "run on Linux")
        return
    if clock_is_kept():
        yield Finding("clock", "ok", "kept by a time service")
    else:
        fix = "run chrony or systemd-timesyncd; one host works without"
        yield Finding("clock", "note", "not kept by a time service: times shown may be off", fix)


def clock_is_kept() -> bool:
    """Whether the kernel says that its clock is kept (adjtimex, reading only)."""
    import ctypes

    time_error = 5
    answer = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(512))
    return bool(answer not in (time_error, -1))


def check_limits() -> Iterator[Finding]:
    """Check the limit of open files."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < MIN_OPEN_FILES:
        fix = f"raise it: ulimit -n {MIN_OPEN_FILES}, or LimitNOFILE= of the service"
        yield Finding("open files", "problem", f"at most {hard}", fix)
    else:
        yield Finding("open files", "ok", f"{soft} of {'any number' if hard == resource.RLIM_INFINITY else hard}")
