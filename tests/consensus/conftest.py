from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.consensus.rig import Host


@pytest.fixture
def make_host(tmp_path: Path) -> Iterator[Callable[..., Host]]:
    made: list[Host] = []

    def make(folder: Path | None = None, **performance: Any) -> Host:
        host = Host(folder or tmp_path / "data", **performance)
        made.append(host)
        return host

    yield make
    for host in made:
        if host.consensus is not None:
            host.kill()
