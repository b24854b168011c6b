"""Devices' readings under others' names: DCGM's for NVIDIA, OpenTelemetry's hardware conventions for all.

Names, units and labels of DCGM are those of NVIDIA's dcgm-exporter, so that dashboards and alerts made for it work.
What it calls a counter has no type here: its names do not end in ``_total``, as those of Prometheus' counters do. Of
OpenTelemetry (semantic conventions for hardware, status "Development") the names are as its Prometheus exporter
writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

MIB = 2**20
_OTEL_LABELS = ("hw_id", "hw_name", "hw_vendor", "hw_model", "hw_parent", "hw_serial_number", "hw_driver_version")
_VENDORS = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel"}


def _read(field: str) -> Callable[[dict[str, Any]], float | None]:
    """The reading of that name, wherever a row has it."""

    def read(gpu: dict[str, Any]) -> float | None:
        value = gpu.get(field, (gpu.get("readings") or {}).get(field))
        return None if value is None else float(value)

    return read


def _fb_used(gpu: dict[str, Any]) -> float | None:
    used = gpu.get("memory_used_bytes")
    return None if used is None else float(int(used) // MIB)


def _fb_free(gpu: dict[str, Any]) -> float | None:
    used = gpu.get("memory_used_bytes")
    if used is None:
        return None
    reserved = int((gpu.get("readings") or {}).get("memory_reserved_mib") or 0)
    return float((int(gpu["memory_total_bytes"]) - int(used)) // MIB - reserved)


_DCGM: tuple[tuple[str, str, str, Callable[[dict[str, Any]], float | None]], ...] = (
    ("GPU_UTIL", "gauge", "GPU utilization (in %).", _read("utilization_percent")),
    ("MEM_COPY_UTIL", "gauge", "Memory utilization (in %).", _read("memory_busy_percent")),
    ("FB_USED", "gauge", "Framebuffer memory used (in MiB).", _fb_used),
    ("FB_FREE", "gauge", "Framebuffer memory free (in MiB).", _fb_free),
    ("FB_RESERVED", "gauge", "Framebuffer memory reserved (in MiB).", _read("memory_reserved_mib")),
    ("GPU_TEMP", "gauge", "GPU temperature (in C).", _read("temperature_celsius")),
    ("MEMORY_TEMP", "gauge", "Memory temperature (in C).", _read("memory_temperature_celsius")),
    ("POWER_USAGE", "gauge", "Power draw (in W).", _read("power_usage_watts")),
    (
        "TOTAL_ENERGY_CONSUMPTION",
        "unknown",
        "Total energy consumption since boot (in mJ).",
        _read("energy_millijoules"),
    ),
    ("SM_CLOCK", "gauge", "SM clock frequency (in MHz).", _read("clock_mhz")),
    ("MEM_CLOCK", "gauge", "Memory clock frequency (in MHz).", _read("memory_clock_mhz")),
    ("PCIE_REPLAY_COUNTER", "unknown", "Total number of PCIe retries.", _read("pcie_replays")),
    ("XID_ERRORS", "gauge", "Value of the last XID error encountered.", _read("last_xid")),
    (
        "UNCORRECTABLE_REMAPPED_ROWS",
        "unknown",
        "Number of remapped rows for uncorrectable errors.",
        _read("rows_remapped_uncorrected"),
    ),
    (
        "CORRECTABLE_REMAPPED_ROWS",
        "unknown",
        "Number of remapped rows for correctable errors.",
        _read("rows_remapped_corrected"),
    ),
    ("ROW_REMAP_FAILURE", "gauge", "Whether remapping of rows has failed.", _read("row_remap_failed")),
)


def dcgm(gpus: Iterable[dict[str, Any]], hostname: str) -> Iterator[Metric]:
    """Families of DCGM's names, for real NVIDIA devices; of what no device reads there is none."""
    of_nvidia = [gpu for gpu in gpus if gpu["vendor"] == "nvidia" and gpu["source"] == "probed"]
    real = [(gpu, _dcgm_labels(gpu, hostname)) for gpu in of_nvidia]
    for name, kind, text, read in _DCGM:
        family = Metric(f"DCGM_FI_DEV_{name}", text, kind)
        for gpu, labels in real:
            value = read(gpu)
            if value is not None:
                family.add_sample(f"DCGM_FI_DEV_{name}", labels, value)
        if family.samples:
            yield family


def _dcgm_labels(gpu: dict[str, Any], hostname: str) -> dict[str, str]:
    facts = gpu.get("facts") or {}
    minor = facts.get("minor")
    labels = {
        "gpu": str(gpu["index"]),
        "UUID": str(facts.get("parent") or gpu["device_id"]),
        "pci_bus_id": str(gpu.get("pcie_bus_id") or ""),
        # The number of the device file, not of the list: they differ where devices were added or are left out.
        "device": f"nvidia{gpu['index'] if minor is None else minor}",
        "modelName": str(gpu["model"]),
        "hostname": hostname,
    }
    if facts.get("parent"):
        labels |= {"GPU_I_PROFILE": str(facts.get("partition") or ""), "GPU_I_ID": str(gpu["device_id"])}
    return labels


_OTEL: tuple[tuple[str, str, str, Callable[[dict[str, Any]], float | None], float], ...] = (
    ("hw_gpu_utilization_ratio", "gauge", "Share of the time the GPU was busy.", _read("utilization_percent"), 0.01),
    ("hw_gpu_memory_limit_bytes", "gauge", "Size of the GPU's memory.", _read("memory_total_bytes"), 1.0),
    ("hw_gpu_memory_usage_bytes", "gauge", "Memory of the GPU in use.", _read("memory_used_bytes"), 1.0),
    ("hw_power_watts", "gauge", "Power drawn.", _read("power_usage_watts"), 1.0),
    ("hw_temperature_celsius", "gauge", "Temperature.", _read("temperature_celsius"), 1.0),
    ("hw_energy_joules", "counter", "Energy consumed since the driver was loaded.", _read("energy_millijoules"), 0.001),
)


def open_telemetry(gpus: Iterable[dict[str, Any]]) -> Iterator[Metric]:
    """Families of OpenTelemetry's names, for the real devices of all vendors."""
    real = [(gpu, _otel_labels(gpu)) for gpu in gpus if gpu["source"] == "probed"]
    for name, kind, text, read, factor in _OTEL:
        counts = kind == "counter"
        family: Metric = (CounterMetricFamily if counts else GaugeMetricFamily)(name, text, labels=_OTEL_LABELS)
        for gpu, labels in real:
            value = read(gpu)
            if value is not None:
                family.add_metric(labels, value * factor)  # type: ignore[attr-defined]
        if family.samples:
            yield family
    errors = CounterMetricFamily("hw_errors", "Errors of the GPU's memory.", labels=(*_OTEL_LABELS, "error_type"))
    status = GaugeMetricFamily("hw_status", "1 at the state that the GPU is in.", labels=(*_OTEL_LABELS, "hw_state"))
    for gpu, labels in real:
        for field, kind in (("ecc_corrected", "corrected"), ("ecc_uncorrected", "uncorrected")):
            count = _read(field)(gpu)
            if count is not None:
                errors.add_metric([*labels, kind], count)
        state = {"ok": "ok", "degraded": "degraded", "failed": "failed", "lost": "failed"}.get(str(gpu.get("health")))
        for each in ("ok", "degraded", "failed") if state else ():
            status.add_metric([*labels, each], float(each == state))
    yield from (family for family in (errors, status) if family.samples)


def _otel_labels(gpu: dict[str, Any]) -> list[str]:
    facts = gpu.get("facts") or {}
    values = (
        gpu["device_id"],
        gpu["model"],
        _VENDORS.get(str(gpu["vendor"]), gpu["vendor"]),
        gpu["model"],
        facts.get("parent") or "",
        facts.get("serial") or "",
        facts.get("driver_version") or "",
    )
    return [str(value) for value in values]
