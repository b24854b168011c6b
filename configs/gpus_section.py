"""The settings of GPUs: where they come from, how they are read, and what holds work and heat within bounds."""

from __future__ import annotations

from pydantic import Field

from actorgrid.models import Bytes, GPUVendor

from .section import ByteCount, Section, setting


class DeclaredGpus(Section):
    """Devices no library reports, counted on someone's word."""

    vendor: GPUVendor
    model: str = Field(min_length=1, max_length=64)
    memory: Bytes
    count: int = Field(default=1, ge=1, le=1024)


class GpusSection(Section):
    """Where the inventory comes from."""

    source: str = setting(
        "auto",
        "auto: the vendors' libraries, else simulated:8xH100-80GB; one vendor: nvidia, amd or intel; none; or "
        "simulated:COUNTxMODEL-MEMORY",
        pattern=r"^(auto|nvidia|amd|intel|none|simulated:\d{1,4}x[A-Za-z0-9_.]+-\d+GB)$",
    )
    declared: list[DeclaredGpus] = setting(
        [], "further devices, counted but without telemetry: a list of {vendor, model, memory, count}", max_length=64
    )
    simulated_busy: str = setting("", "of simulated devices: a file that says how busy each is, in percent")
    simulated_script: str = setting(
        "", "of simulated devices: a YAML file that says what they read over time; read again when it changes"
    )
    probe_interval_s: float = setting(5.0, "time between readings of the devices", live=True, ge=0.5, le=3600)
    probe_timeout_s: float = setting(
        10.0,
        "a vendor library that does not answer in this time, beside what it waits for a processor, is killed with its "
        "process",
        ge=0.5,
        le=600,
    )
    memory_watch: str = setting(
        "end",
        "work that has more memory of a GPU than its gpu_memory: end it, report it, or off",
        pattern=r"^(end|report|off)$",
        live=True,
    )
    memory_slack: ByteCount = setting(
        2**30,  # an H100's driver and PyTorch's libraries have 750 MiB in a process that multiplied two matrices
        "what work may have of a GPU above its gpu_memory: drivers count their own share",
        live=True,
        le=2**40,
    )
    ungranted: str = setting(
        "report",
        "processes that have memory of a GPU without a grant: report them; end-own: end what is left of this host's "
        "work that has ended; end-all: also what is nobody's work; never what belongs to work that runs",
        pattern=r"^(report|end-own|end-all)$",
        live=True,
    )
    ungranted_grace_s: float = setting(
        60.0, "how long such a process is there before it is ended", live=True, ge=1, le=86_400
    )
    mig: str = setting(
        "existing",
        "MIG instances of NVIDIA's GPUs: existing: give out those that there are; dynamic: also cut a free GPU when "
        "work asks for one, and put it together when nobody does; off: give out none",
        pattern=r"^(off|existing|dynamic)$",
        live=True,
    )
    mps: bool = setting(
        False,
        "hold shares of NVIDIA's GPUs to their compute and gpu_memory by NVIDIA's MPS, one daemon for each GPU and "
        "tenant, or user with a uid of its own; the fault of one ends its neighbours there",
        live=True,
    )
    heat_control: str = setting(
        "place",
        "a GPU that is too hot: place nothing new on it; cap its power, too; or stop what runs on it, too, before it "
        "switches itself off",
        pattern=r"^(place|cap|stop)$",
        live=True,
    )
    heat_limit_celsius: float = setting(
        0,
        "treat GPUs as if they slowed down at this temperature already; 0: where their drivers do",
        live=True,
        ge=0,
        le=150,
    )
    power_budget_watts: float = setting(
        0,
        "what all GPUs of the cluster may draw together, the same on every host; 0: no budget",
        live=True,
        ge=0,
        le=1e9,
    )
