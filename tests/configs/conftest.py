from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from actorgrid.configs.load import LoadedSettings, load_settings

Load = Callable[..., LoadedSettings]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Loads settings from file texts, variables and flags, and nothing else of this machine."""

    def from_texts(
        files: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
        overrides: Mapping[str, str] | None = None,
    ) -> LoadedSettings:
        for name, text in (files or {}).items():
            (tmp_path / name).write_text(text, encoding="utf-8")
        return load_settings(tmp_path, None, overrides, environ or {})

    return from_texts
