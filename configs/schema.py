"""Every setting: its type, unit, bounds, default, and whether it changes without a restart.

A setting is named by its path, ``work.max_isolation_s``. ``live=True`` marks those that take effect at once.
The first level says which shipped file holds it (``FILES``).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PrivateAttr, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from actorgrid.errors import InvalidSetting, SettingNotLive, UnknownSetting

from .alerts_section import AlertsSection
from .balancing_policy import BalancingPolicy
from .gpus_section import GpusSection
from .monitoring_section import MonitoringSection
from .notifications_section import NotificationsSection
from .objects_section import ObjectsSection
from .oidc_section import OidcSection
from .placement_policy import PlacementPolicy
from .section import ByteCount, Section, setting
from .sessions_section import SessionsSection
from .transports_section import TransportsSection

FILES = {
    "cluster": "cluster.yaml",
    "gpus": "cluster.yaml",
    "scheduling": "cluster.yaml",
    "work": "cluster.yaml",
    "sessions": "cluster.yaml",
    "objects": "cluster.yaml",
    "transports": "cluster.yaml",
    "model_gateway": "cluster.yaml",
    "state": "cluster.yaml",
    "security": "security.yaml",
    "grpc": "security.yaml",
    "oidc": "security.yaml",
    "monitoring": "monitoring.yaml",
    "faults": "monitoring.yaml",
    "notifications": "monitoring.yaml",
    "alerts": "monitoring.yaml",
    "performance": "performance.yaml",
}


def loopback(address: str) -> str:
    """*address* when only this machine can reach it. Names other than ``localhost`` are not looked up."""
    import ipaddress

    try:
        inside = address == "localhost" or ipaddress.ip_address(address).is_loopback
    except ValueError:
        inside = False
    if not inside:
        raise PydanticCustomError(
            "beyond_loopback",
            "listening on {address} needs TLS material, and this version has no setting for it yet; "
            "use 127.0.0.1, ::1 or localhost",
            {"address": repr(address)},
        )
    return address


def port_range(text: str) -> str:
    """*text* when it is the first and the last of some ports."""
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and 1024 <= int(first) <= int(last) <= 65_535):
        raise PydanticCustomError(
            "no_ports", "{text} names no ports; write the first and the last, like 29500-29999", {"text": repr(text)}
        )
    return text


def address_and_port(text: str) -> str:
    """*text* when it is an address and a port, or empty."""
    address, _, port = text.rpartition(":")
    bracketed = address.startswith("[") and address.endswith("]")
    if text and not (
        address and (bracketed or ":" not in address) and port.isascii() and port.isdecimal() and int(port) <= 65_535
    ):
        raise PydanticCustomError(
            "no_address", "{text} is no address with a port; write 127.0.0.1:7407 or [::1]:7407", {"text": repr(text)}
        )
    return text


def reachable(address: str) -> str:
    """*address* when others can be told to come there: numeric, and one address, not all; or empty."""
    import ipaddress

    try:
        good = not address or not ipaddress.ip_address(address).is_unspecified
    except ValueError:
        good = False
    if not good:
        raise PydanticCustomError(
            "not_reachable",
            "{address} is no address that other hosts can be given; use this host's own IP address, without a port "
            "(--port says where its ports begin)",
            {"address": repr(address)},
        )
    return address


class ClusterSection(Section):
    """Who this host is and where it listens."""

    name: str = setting("actorgrid", "name of the cluster, shown to people", max_length=64)
    host_name: str = setting("", "name of this host; empty: what the system calls it", max_length=253)
    bind: Annotated[str, AfterValidator(loopback)] = setting(
        "127.0.0.1", "address the HTTP door listens on; anything beyond loopback needs TLS material"
    )
    listen: Annotated[str, AfterValidator(reachable)] = setting(
        "",
        "IP address at which the cluster's other hosts reach this one, over mutual TLS; empty: the host is alone, or"
        " has its place in a cluster already",
    )
    rack: str = setting(
        "",
        "name of the rack this host is in: members of a gang go into one where they can; votes go to several, by what a"
        " host says when it joins",
        max_length=64,
        pattern=r"^[A-Za-z0-9_.-]*$",
    )
    site: str = setting(
        "",
        "name of the site (data centre) this host is in: hosts talk much inside a site and little between them; empty:"
        " all are at one site",
        max_length=64,
        pattern=r"^[A-Za-z0-9_.-]*$",
    )
    voter_sites: str = setting(
        "",
        "sites whose hosts may vote on the ledger, with commas between; hosts elsewhere follow without a vote; empty:"
        " votes are spread over all sites",
        live=True,
        max_length=512,
        pattern=r"^([A-Za-z0-9_.-]+(,[A-Za-z0-9_.-]+)*)?$",
    )
    base_port: int = setting(
        7400, "HTTP port; calls, Raft and the join server follow at +1, +2, +3; 0: any free port", ge=0, le=65531
    )
    membership: Literal["lan", "lan_fast", "wan", "off"] = setting(
        "lan",
        "how soon the cluster's hosts find out that one is reached by nobody, over UDP at base_port + 3: a profile that"
        " all of them share; off: this host takes no part",
    )


class SchedulingSection(Section):
    """Who is served first and where."""

    policy: PlacementPolicy = setting("completion", "how a place is chosen among those that fit")
    queue: str = setting(
        "easy_backfill",
        "who goes first, who may pass one that does not fit, who may be stopped for whom: a scheduling policy",
        pattern=r"^[A-Za-z0-9_.-]{1,64}$",
    )
    queue_max: int = setting(100_000, "jobs that may wait; more are refused", live=True, ge=1, le=10_000_000)
    waiting_bytes_max: ByteCount = setting(
        512 * 2**20,
        "commands and environments of all jobs that wait, with 1 KiB for each job; more are refused",
        live=True,
        ge=2**20,
        le=2**40,
    )
    user_waiting_bytes_max: ByteCount = setting(256 * 2**20, "the same, of each user's", live=True, ge=2**20, le=2**40)
    retry_backoff_s: float = setting(
        0.5,
        "wait before attempt n+1 is this times 2**(n-1), at most 60 s, less up to a quarter",
        live=True,
        ge=0,
        le=60,
    )


class PoolSection(Section):
    """One pool of warm workers."""

    warm: int = Field(default=0, ge=0, le=1024, description="workers kept started and idle")
    max: int = Field(default=64, ge=1, le=4096, description="workers at most, busy ones included")
    idle_s: float = Field(
        default=300.0,
        ge=1,
        le=86_400,
        description="a used one that its session has not taken again for so long is ended",
    )
    memory_max_bytes: ByteCount = Field(
        default=4 * 2**30, ge=2**20, description="one that takes more when its session lets go of it is not used again"
    )
    balancing: BalancingPolicy = Field(
        default=BalancingPolicy.LEAST_LOADED,
        description="which of a session's workers gets a task, where the client does not say",
    )

    @model_validator(mode="after")
    def _warm_within_max(self) -> PoolSection:
        if self.warm > self.max:
            raise PydanticCustomError(
                "inconsistent",
                "warm ({warm}) is more than max ({max})",
                {"key": "warm", "warm": self.warm, "max": self.max},
            )
        return self


class PoolsSection(Section):
    """The pools, by kind of work."""

    gpu_compute: PoolSection = PoolSection(warm=0, max=256)
    cpu_intensive: PoolSection = PoolSection(warm=0, max=64)
    io_bound: PoolSection = PoolSection(warm=0, max=128)
    general: PoolSection = PoolSection(warm=2, max=64)


class WorkSection(Section):
    """Workers, attempts and what is kept of them."""

    pools: PoolsSection = setting(PoolsSection(), "warm workers by kind of work")
    max_isolation_s: float = setting(
        10.0,
        "how long an attempt goes on without its agent or the cluster; a job may set its own",
        live=True,
        ge=3,
        le=86400,
    )
    start_timeout_s: float = setting(
        30.0,
        "an attempt that its host cannot start for so long is given back, and placed again, free of charge",
        live=True,
        ge=1,
        le=3600,
    )
    lease_s: float = setting(
        3.0, "without a word of the cluster's leader for so long, this host starts nothing new", ge=0.5, le=3
    )
    kill_grace_s: float = setting(
        5.0, "time between SIGTERM and SIGKILL; for preemption a job may set its own", live=True, ge=0, le=3600
    )
    max_output_bytes: ByteCount = setting(
        64 * 2**20,
        "kept of stdout and of stderr, each, per attempt; what comes after is dropped and said so",
        live=True,
    )
    max_result_bytes: ByteCount = setting(64 * 2**20, "largest result of a function", live=True, le=64 * 2**20)
    max_attempts: int = setting(512, "attempts that may run at once on this host", live=True, ge=1, le=10_000)
    keep_finished_jobs: int = setting(
        1000, "ended attempts whose output and result stay on disk", live=True, ge=1, le=1_000_000
    )
    calls_per_process: int = setting(
        200,
        "durable functions of one user, environment and demand that one process may run, one after another; "
        "1: each has a process of its own",
        live=True,
        ge=1,
        le=100_000,
    )
    containers: Literal["auto", "apptainer", "podman", "docker", "off"] = setting(
        "auto",
        "what runs the containers of commands: the first of them that is there, that one alone, or none",
        live=True,
    )
    container_mounts: list[str] = setting(
        ["/"], "below which folders of this host commands may have something mounted into their containers", live=True
    )
    outputs_bytes_max: ByteCount = setting(
        64 * 2**30,
        "kept of what jobs named as their outputs, of one attempt and of all on this host; the oldest go",
        live=True,
    )
    disk_bytes_max: ByteCount = setting(
        0,
        "what one attempt or worker may hold of the data directory's disk, in folders of its own; 0: any amount",
        live=True,
    )
    disk_free_min_bytes: ByteCount = setting(
        2**30,
        "with less free on the data directory's disk, or than a twentieth of it, the work that holds most there is "
        "ended; 0: none is",
        live=True,
    )
    step_cache_bytes_max: ByteCount = setting(2**34, "results that later graphs may want; the oldest go", live=True)
    environments_max: int = setting(
        32, "Python environments that are kept built; the one used longest ago goes, never one in use", ge=1, le=1000
    )
    environments_bytes_max: ByteCount = setting(
        64 * 2**30, "of all of them together; as much again for what was downloaded for them", ge=2**20
    )
    environment_build_s: float = setting(
        1800.0, "a build of a Python environment that takes longer is given up", live=True, ge=10, le=86_400
    )
    rendezvous_ports: Annotated[str, AfterValidator(port_range)] = setting(
        "29500-29999",
        "where rank 0 of a gang may listen for the other members: the first and the last port; one for each gang",
        live=True,
    )
    containment: Literal["auto", "cgroup", "freezer", "pid_namespace", "none"] = setting(
        "auto",
        "what work is kept in, so that nothing it forks escapes its end: the strongest there is, or that kind alone",
    )
    cpu_limit: Literal["auto", "granted", "none"] = setting(
        "auto",
        "whether jobs are held to the processors that they asked for, where a cgroup v2 can: granted: all but "
        "containers; auto: those that are kept apart at full; none: each may take what is idle",
        live=True,
    )
    isolation: Literal["auto", "off", "basic", "full"] = setting(
        "auto",
        "how far work is kept from the agent and from others' work: basic hides the agent's keys, full gives each user "
        "a uid of their own (as root); auto: basic, and full for tenants other than 'default' where it can be had",
        live=True,
    )
    on_stop: Literal["end", "leave"] = setting(
        "end",
        "an orderly stop ends running attempts (their jobs wait for the next start) or leaves them to it",
        live=True,
    )


class ModelGatewaySection(Section):
    """The gateway for served models; what is set here holds from its next start, behind an orderly stop of the host."""

    workers: int = setting(1, "processes that carry requests, which share the port; 0: one for each core", ge=0, le=64)


class StateSection(Section):
    """The shared state: whose keys are whose, and how much of it a namespace may take."""

    namespace_keys: int = setting(
        10_000, "keys in one namespace (@NAME/...); the default one has all that is left", live=True, ge=1, le=100_000
    )
    namespace_bytes: ByteCount = setting(
        16 * 2**20, "size of all states in one namespace (@NAME/...)", live=True, ge=1024, le=64 * 2**20
    )
    shared_namespaces: str = setting(
        "default,shared",
        "namespaces that the work of every user may read and write, beside its own, separated by commas",
        live=True,
        max_length=1024,
    )
    retire_starts: int = setting(
        3,
        "earlier starts of a host that wrote to the shared state: so many names are kept before they are retired",
        live=True,
        ge=1,
        le=256,
    )
    retire_after_s: float = setting(
        300.0,
        "wait after a start, or a host's removal: what members tell sooner that they hold retires no names",
        live=True,
        ge=5,
        le=86_400,
    )


class SecuritySection(Section):
    """Who may do what."""

    metrics_need_token: bool = setting(
        False, "ask for the token on /metrics here, too; other machines need it always", live=True
    )
    work_as_root: Literal["warn", "accept", "refuse"] = setting(
        "warn", "when the agent runs as root: its users' work does, too, and may do anything on this machine"
    )
    max_body_bytes: ByteCount = setting(64 * 2**20, "largest HTTP body", live=True, le=2**30)
    audit_bytes: ByteCount = setting(
        2**30, "what audit records may take on a host's disk; beyond, the oldest go", live=True, ge=16 * 2**20
    )
    requests_per_s: int = setting(
        1000, "requests and jobs a second with one API key, at each host; 0: any number", live=True, ge=0, le=10**6
    )
    requests_burst: int = setting(10_000, "how many of them at once", live=True, ge=1, le=10**6)
    tenant_requests_per_s: int = setting(
        2000, "the same of all keys and work of one tenant together; 0: any number", live=True, ge=0, le=10**6
    )
    tenant_requests_burst: int = setting(20_000, "how many of them at once", live=True, ge=1, le=10**6)
    websocket_origins: list[str] = setting(
        [], "pages that may open WebSockets here, as https://NAME; those of this host may", live=True, max_length=64
    )


class GrpcSection(Section):
    """The gRPC API, which a process of its own serves."""

    listen: Annotated[str, AfterValidator(address_and_port)] = setting(
        "",
        "where, as ADDRESS:PORT; port 0: any free one; empty: not at all. Beyond loopback with the host's certificate",
    )
    client_authorities: str = setting(
        "", "file of certificates (PEM): clients show one of theirs, beside a token; empty: tokens alone"
    )


class FaultsSection(Section):
    """How hosts are checked, and what is done about those that fail."""

    interval_s: float = setting(5.0, "time between two rounds of checks", ge=0.2, le=300)
    disk_probe_s: float = setting(10.0, "time between two small writes that measure the disk", ge=0.2, le=3600)
    repeat_s: float = setting(30.0, "a check that goes on failing counts as another failure so often", ge=1, le=3600)
    window_s: float = setting(3600.0, "failures count for so long", ge=60, le=86_400)
    half_life_s: float = setting(900.0, "in which the penalty for flapping halves", ge=10, le=86_400)
    recovered_s: float = setting(60.0, "a host is well when nothing failed there for so long", ge=1, le=86_400)
    process_restart_at: int = setting(1, "failures from which a silent server is restarted", ge=1, le=1000)
    work_redistribution_at: int = setting(3, "failures from which a host's work is moved", ge=1, le=1000)
    node_restart_at: int = setting(6, "failures from which a host is restarted", ge=1, le=1000)
    cluster_rebalance_at: int = setting(10, "failures from which the cluster is rebalanced", ge=1, le=1000)
    process_restart: str = setting("supervisor", "strategy for it: supervisor, dry_run, off, or of a package")
    work_redistribution: str = setting("drain", "strategy for it: drain, dry_run, off, or of a package")
    node_restart: str = setting("dry_run", "strategy for it: dry_run, command, ipmi, http, off, or of a package")
    cluster_rebalance: str = setting("load_balancer", "strategy for it: load_balancer, dry_run, off, or of a package")
    command: list[str] = setting(
        [], "node_restart: command and its arguments; {host}, {host_id} and {address} stand for the host", max_length=64
    )
    ipmi_address: str = setting(
        "", "node_restart: address of a host's management controller, with {host} for its name; empty: {host}-bmc"
    )
    ipmi_user: str = setting("", "node_restart: user of the management controllers")
    ipmi_password_file: str = setting("", "node_restart: file with that user's password")
    http_url: str = setting("", "node_restart: address that is sent a POST with the host as JSON")
    http_token_file: str = setting("", "node_restart: file with a bearer token for it")
    action_timeout_s: float = setting(120.0, "time for a command, ipmi or http of node_restart", ge=1, le=600)

    @model_validator(mode="after")
    def _thresholds_rise(self) -> FaultsSection:
        steps = (self.process_restart_at, self.work_redistribution_at, self.node_restart_at, self.cluster_rebalance_at)
        if list(steps) != sorted(steps):
            raise PydanticCustomError(
                "inconsistent",
                "each step takes at least as many failures as the one before, these take {steps}",
                {"key": "cluster_rebalance_at", "steps": ", ".join(map(str, steps))},
            )
        return self


class PerformanceSection(Section):
    """Sizes that trade speed against memory and disk."""

    actors_max: int = setting(1000, "actor processes on this host at a time", ge=20, le=100_000)
    ledger_segment_bytes: ByteCount = setting(16 * 2**20, "size at which the log starts a new segment", ge=4096)
    ledger_snapshot_every: int = setting(20_000, "entries between snapshots", ge=10, le=10_000_000)
    ledger_batch_max: int = setting(
        256, "commands gathered for one fsync; more may gather while the disk is busy", ge=1, le=65_536
    )
    min_free_bytes: ByteCount = setting(
        64 * 2**20,
        "with less than this free on the data directory's disk, no new work is accepted",
        live=True,
    )
    reserve_bytes: ByteCount = setting(
        4 * 2**20, "kept allocated so that accepted work can still be recorded on a full disk", le=2**30
    )


class Settings(Section):
    """All settings of a host."""

    cluster: ClusterSection = ClusterSection()
    gpus: GpusSection = GpusSection()
    scheduling: SchedulingSection = SchedulingSection()
    work: WorkSection = WorkSection()
    sessions: SessionsSection = SessionsSection()
    objects: ObjectsSection = ObjectsSection()
    transports: TransportsSection = TransportsSection()
    model_gateway: ModelGatewaySection = ModelGatewaySection()
    state: StateSection = StateSection()
    security: SecuritySection = SecuritySection()
    grpc: GrpcSection = GrpcSection()
    oidc: OidcSection = OidcSection()
    monitoring: MonitoringSection = MonitoringSection()
    faults: FaultsSection = FaultsSection()
    notifications: NotificationsSection = NotificationsSection()
    alerts: AlertsSection = AlertsSection()
    performance: PerformanceSection = PerformanceSection()

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    def origin(self, key: str) -> str:
        """Where the value comes from: ``default``, ``FILE:LINE``, a variable, a flag or ``live``.

        Raises UnknownSetting.
        """
        self._owner(key)
        return self._origins.get(key, "default")

    def set_origins(self, origins: dict[str, str]) -> None:
        """Remember where values come from; a key that is not named comes from its default."""
        self._origins = dict(origins)

    def get(self, key: str) -> Any:
        """The value at a dotted path. Raises UnknownSetting with the closest name."""
        owner, name = self._owner(key)
        return getattr(owner, name)

    def is_live(self, key: str) -> bool:
        """Whether the setting takes effect without a restart."""
        owner, name = self._owner(key)
        extra = type(owner).model_fields[name].json_schema_extra
        return isinstance(extra, dict) and bool(extra.get("live"))

    def check_live(self, key: str, value: Any) -> Any:
        """The value as it would be stored. Raises UnknownSetting, SettingNotLive or InvalidSetting."""
        owner, name = self._owner(key)
        if not self.is_live(key):
            raise SettingNotLive(
                f"{key} takes effect only at the next start",
                asked=f"{key} = {value!r}",
                hint=f"write it into {FILES[key.split('.')[0]]} and restart the agent",
            )
        trial = owner.model_copy()
        try:
            setattr(trial, name, value)
        except ValidationError as error:
            problem = error.errors()[0]
            raise InvalidSetting(
                f"{key}: {problem['msg']}", asked=repr(value), found=f"it is {getattr(owner, name)!r} now"
            ) from None
        return getattr(trial, name)

    def set_live(self, key: str, value: Any) -> Any:
        """Change a live setting in this process; gives the previous value. Raises as :meth:`check_live`."""
        checked = self.check_live(key, value)
        owner, name = self._owner(key)
        previous = getattr(owner, name)
        setattr(owner, name, checked)
        self._origins[key] = "live"
        return previous

    def describe(self, key: str) -> str:
        """What the setting means, in a sentence. Raises UnknownSetting."""
        owner, name = self._owner(key)
        return type(owner).model_fields[name].description or ""

    def keys(self) -> list[str]:
        """All dotted paths, in order."""
        found: list[str] = []

        def walk(section: Section, prefix: str) -> None:
            for name in type(section).model_fields:
                value = getattr(section, name)
                if isinstance(value, Section):
                    walk(value, f"{prefix}{name}.")
                else:
                    found.append(f"{prefix}{name}")

        walk(self, "")
        return found

    def _owner(self, key: str) -> tuple[Section, str]:
        owner: Section = self
        *path, name = key.split(".")
        for part in path:
            inner = getattr(owner, part, None) if part in type(owner).model_fields else None
            if not isinstance(inner, Section):
                raise unknown_setting(key, self.keys())
            owner = inner
        if name not in type(owner).model_fields or isinstance(getattr(owner, name), Section):
            raise unknown_setting(key, self.keys())
        return owner, name


def nearest(key: str, known: list[str]) -> str | None:
    """The setting most likely meant by *key*: the same last word elsewhere, else the closest spelling."""
    import difflib

    word = key.rsplit(".", 1)[-1]
    elsewhere = [name for name in known if name.rsplit(".", 1)[-1] == word]
    if len(elsewhere) == 1:
        return elsewhere[0]
    close = difflib.get_close_matches(key, elsewhere or known, n=1, cutoff=0.5)
    return close[0] if close else None


def unknown_setting(key: str, known: list[str]) -> UnknownSetting:
    """The error for a name that is no setting, with the nearest one that is."""
    close = nearest(key, known)
    return UnknownSetting(
        f"there is no setting {key!r}",
        asked=key,
        hint=f"did you mean {close}?" if close else "actorgrid config list shows all",
    )
