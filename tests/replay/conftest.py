from __future__ import annotations

from pathlib import Path

import pytest

from actorgrid.replay.workload import Node, Task

SAMPLES = Path(__file__).parent / "samples"


@pytest.fixture
def two_nodes() -> list[Node]:
    """Two GPUs and four: six in all."""
    return [
        Node("small", cpu_milli=8_000, memory_mib=32_768, gpu_count=2, gpu_model="T4"),
        Node("large", cpu_milli=32_000, memory_mib=131_072, gpu_count=4, gpu_model="A100"),
    ]


@pytest.fixture
def mixed_tasks() -> list[Task]:
    """A quarter of a GPU, half of one, a whole one, two, and none."""
    return [
        Task("quarter", 1_000, 1_024, 1, 250),
        Task("half", 2_000, 2_048, 1, 500),
        Task("whole", 4_000, 4_096, 1, 1000),
        Task("pair", 8_000, 8_192, 2, 1000),
        Task("none", 1_000, 1_024, 0),
    ]
