"""Notifications on the desktop, by the program that is on the PATH."""

from __future__ import annotations

from pathlib import Path

import pytest

from actorgrid.cli.desktop import check_desktop, ended_text, tell_desktop
from actorgrid.errors import NotSupported

JOB = {"job_id": "a" * 32, "name": "train <b>", "state": "failed"}


@pytest.fixture
def desktop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "notify-send"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/shown\n')
    program.chmod(0o755)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nowhere")
    return tmp_path


def test_what_ended_is_shown(desktop: Path) -> None:
    assert tell_desktop(check_desktop(), *ended_text([JOB])) == ""
    shown = (desktop / "shown").read_text().splitlines()
    assert shown[-2:] == ["actorgrid: failed", "train &lt;b&gt; (aaaaaaaa) failed"]
    assert ended_text([JOB] * 7)[1].endswith("and 2 more")


def test_where_none_can_be_shown_it_is_said_before_anything_is_waited_for(
    desktop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DBUS_SESSION_BUS_ADDRESS")
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    with pytest.raises(NotSupported) as caught:
        check_desktop()
    assert "no session" in caught.value.found
    (desktop / "notify-send").unlink()
    monkeypatch.setenv("PATH", str(desktop))
    with pytest.raises(NotSupported) as caught:
        check_desktop()
    assert "notify-send" in caught.value.found


def test_one_that_fails_is_told_and_changes_nothing(desktop: Path) -> None:
    (desktop / "notify-send").write_text("#!/bin/sh\necho broken >&2; exit 3\n")
    assert tell_desktop(check_desktop(), "a", "b") == "notify-send ended with 3: broken"
