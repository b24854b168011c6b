from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def docs() -> str:
    """The page about chaos."""
    return (ROOT / "docs/chaos.md").read_text(encoding="utf-8")
