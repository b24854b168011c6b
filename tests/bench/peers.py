"""Other systems, in the same run on the same machine, each in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .figures import Figure, Skipped, latency, registry

ENVIRONMENT = Path(".bench-venv")
INSTALL_TIMEOUT_S = 900.0
RUN_TIMEOUT_S = 300.0


def python_with(package: str, wanted: str = "") -> Path:
    """The interpreter of an environment that has *package*, made when it is not there. Raises Skipped.

    *wanted*: what pip is asked for, where that has another name.
    """
    python = ENVIRONMENT / "bin" / "python"
    try:
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True, timeout=120)
            (ENVIRONMENT / ".gitignore").write_text("*\n")
        there = subprocess.run([str(python), "-c", f"import {package}"], capture_output=True, check=False, timeout=120)
        if there.returncode:
            subprocess.run(
                [str(python), "-m", "pip", "install", "--quiet", wanted or package],
                check=True,
                timeout=INSTALL_TIMEOUT_S,
                capture_output=True,
                text=True,
            )
    except subprocess.CalledProcessError as error:
        last = (error.stderr or "").strip().splitlines()[-1:] or [str(error)]
        raise Skipped(f"{package} does not install here: {last[0][:200]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Skipped(f"{package} does not install here: {error}") from error
    return python.absolute()


def answer_of(
    name: str,
    command: Sequence[object],
    limit_s: float = RUN_TIMEOUT_S,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The JSON that another system's program prints as its last line. Raises Skipped with what it said instead.

    *environment* is added to this one's.
    """
    try:
        ran = subprocess.run(
            [str(part) for part in command],
            capture_output=True,
            text=True,
            timeout=limit_s,
            env={**os.environ, **(environment or {})},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Skipped(f"{name} gave nothing within {limit_s:g} s") from error
    if ran.returncode:
        raise Skipped(f"{name} failed here: {ran.stderr.strip()[-300:]}")
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


@registry.add("ray")
def ray(runs: int) -> Iterator[Figure]:
    """Ray's tasks, actors and quarter-GPU tasks."""
    python = python_with("ray")
    script = Path(__file__).with_name("peer_ray.py")
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "PYTHONWARNINGS": "ignore"}
    found = answer_of("Ray", [python, script, runs], environment=quiet)
    version = found["version"]
    yield Figure(f"Ray {version}: noop tasks", "tasks/s", found["rates"], True)
    yield latency(f"Ray {version}: round trip", found["trips"], "ms", 1e3)
    yield Figure(f"Ray {version}: 0.25-GPU tasks", "tasks/s", found["gpu_rates"], True, note="num_gpus=0.25")
    yield latency(f"Ray {version}: actor call", found["calls"], "µs", 1e6)
    yield Figure(f"Ray {version}: actor calls in flight", "calls/s", found["call_rates"], True)
    yield Figure(f"Ray {version}: cold start to first result", "s", found["cold"], False)
    yield Figure(f"Ray {version}: idle, PSS without workers", "MB", found["idle_mb"], False)
