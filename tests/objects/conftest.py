from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .rig import StoreProcess


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreProcess]:
    store = StoreProcess(tmp_path)
    yield store
    store.close()
