from __future__ import annotations

from pathlib import Path

import pytest

from actorgrid.replay.workload import TraceNode, TraceTask

SAMPLES = Path(__file__).parent / "samples"


@pytest.fixture
def two_nodes() -> list[TraceNode]:
    """Two GPUs and four: six in all."""
    return [
        TraceNode("small", cpu_milli=8_000, memory_mib=32_768, gpu_count=2, gpu_model="T4"),
        TraceNode("large", cpu_milli=32_000, memory_mib=131_072, gpu_count=4, gpu_model="A100"),
    ]


@pytest.fixture
def mixed_tasks() -> list[TraceTask]:
    """A quarter of a GPU, half of one, a whole one, two, and none."""
    return [
        TraceTask("quarter", 1_000, 1_024, 1, 250),
        TraceTask("half", 2_000, 2_048, 1, 500),
        TraceTask("whole", 4_000, 4_096, 1, 1000),
        TraceTask("pair", 8_000, 8_192, 2, 1000),
        TraceTask("none", 1_000, 1_024, 0),
    ]
