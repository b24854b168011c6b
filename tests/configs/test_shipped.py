"""The shipped files are the documentation: they must say what the schema says, key by key."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml

from actorgrid.configs.load import SHIPPED_DIR, load_settings
from actorgrid.configs.schema import FILES, Settings
from actorgrid.configs.shipped import render, render_env_example, write
from actorgrid.configs.variables import variable

KEYS = Settings().keys()
SHIPPED = sorted(set(FILES.values()))


def uncommented(text: str) -> str:
    return re.sub(r"^( *)#(?=[a-z_]+:)", r"\1", text, flags=re.MULTILINE)


@pytest.mark.parametrize("file", SHIPPED)
def test_a_shipped_file_lists_exactly_its_settings_with_their_defaults(file: str) -> None:
    tree = yaml.safe_load(uncommented((SHIPPED_DIR / file).read_text(encoding="utf-8")))
    listed: dict[str, object] = {}

    def walk(node: object, prefix: str) -> None:
        if isinstance(node, dict):
            for name, value in node.items():
                walk(value, f"{prefix}.{name}".lstrip("."))
        else:
            listed[prefix] = node

    walk(tree, "")
    assert list(listed) == [key for key in KEYS if FILES[key.split(".")[0]] == file]


def test_the_files_uncommented_are_the_defaults(tmp_path: Path) -> None:
    for file in SHIPPED:
        (tmp_path / file).write_text(uncommented((SHIPPED_DIR / file).read_text(encoding="utf-8")), encoding="utf-8")
    loaded = load_settings(tmp_path, None, {}, {})
    assert loaded.settings.model_dump() == Settings().model_dump()
    assert {origin.kind for origin in loaded.origins.values()} == {"file"}


def test_the_files_as_they_ship_change_nothing(tmp_path: Path) -> None:
    for file in [*SHIPPED, ".env.example"]:
        shutil.copy(SHIPPED_DIR / file, tmp_path / file.removesuffix(".example"))
    loaded = load_settings(tmp_path, None, {}, {})
    assert {origin.kind for origin in loaded.origins.values()} == {"default"}


def test_the_env_example_uncommented_is_the_defaults(tmp_path: Path) -> None:
    text = (SHIPPED_DIR / ".env.example").read_text(encoding="utf-8")
    (tmp_path / ".env").write_text(re.sub(r"^#(?=ACTORGRID_)", "", text, flags=re.MULTILINE), encoding="utf-8")
    loaded = load_settings(tmp_path, None, {}, {})
    assert loaded.settings.model_dump() == Settings().model_dump()
    assert [origin.name for origin in loaded.origins.values()] == [variable(key) for key in KEYS]


def test_every_setting_says_what_it_means() -> None:
    settings = Settings()
    assert [key for key in KEYS if len(settings.describe(key)) < 10] == []


def test_the_shipped_files_are_what_the_schema_writes() -> None:
    stale = [file for file in SHIPPED if (SHIPPED_DIR / file).read_text(encoding="utf-8") != render(file)]
    if (SHIPPED_DIR / ".env.example").read_text(encoding="utf-8") != render_env_example():
        stale.append(".env.example")
    assert stale == [], "write them anew: python -m actorgrid.configs.shipped"


def test_they_can_be_written_elsewhere(tmp_path: Path) -> None:
    assert [path.name for path in write(tmp_path)] == [
        "cluster.yaml",
        "security.yaml",
        "monitoring.yaml",
        "performance.yaml",
        ".env.example",
    ]
