"""Settings read by a child process are the same, and so are the refusals."""

import subprocess
import sys
from pathlib import Path

import pytest

from actorgrid.configs.load import load_settings
from actorgrid.configs.load_in_child import settings_read_apart
from actorgrid.errors import StartFailed, UnknownSetting


def test_they_are_what_load_settings_gives_with_their_origins(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text("work:\n  max_isolation_s: 7\n")
    apart = settings_read_apart(tmp_path, overrides={"scheduling.queue_max": "5"})
    here = load_settings(tmp_path, overrides={"scheduling.queue_max": "5"}).settings
    assert apart == here
    assert apart.origin("work.max_isolation_s") == here.origin("work.max_isolation_s")


def test_a_refusal_arrives_by_name(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text("work:\n  max_isolatoin_s: 7\n")
    with pytest.raises(UnknownSetting, match=r"cluster\.yaml"):
        settings_read_apart(tmp_path)


def test_a_child_that_dies_is_told() -> None:
    with pytest.raises(StartFailed, match="ended with status"):
        settings_read_apart(no_such_argument=1)


def test_the_libraries_that_read_them_stay_out_of_this_process() -> None:
    script = (
        "import sys; from actorgrid.configs.load_in_child import settings_read_apart; settings_read_apart();"
        "print([name for name in ('yaml', 'pydantic_settings', 'dotenv') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
