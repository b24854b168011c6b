"""What hosts leave that were killed, and are gone, is removed by the next that starts; nothing that anybody may use."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from actorgrid.actors.host.left_sockets import remove_left
from actorgrid.actors.work.shim_sockets import listen
from actorgrid.configs.paths import HostPaths


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostPaths]:
    shared = Path("/tmp") / f"l{os.getpid()}"  # short: sockets lie below it
    shared.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(shared))
    own = HostPaths(tmp_path / "own")
    own.make()
    yield own
    shutil.rmtree(shared)


def killed(data_dir: Path, *, is_gone: bool = True) -> HostPaths:
    """A host that ended without a word, with a socket in its directory."""
    paths = HostPaths(data_dir)
    paths.make()
    listen(str(paths.work_sockets_dir / "s")).close()
    if is_gone:
        shutil.rmtree(data_dir)
    return paths


def test_one_whose_data_directory_is_gone_goes_and_others_stay(paths: HostPaths, tmp_path: Path) -> None:
    gone, there = killed(tmp_path / "gone"), killed(tmp_path / "there", is_gone=False)
    assert remove_left(paths) == 1
    assert not gone.runtime_dir.exists()
    assert there.runtime_dir.exists() and paths.runtime_dir.exists()


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET])
def test_one_in_which_somebody_listens_stays(paths: HostPaths, tmp_path: Path, kind: socket.SocketKind) -> None:
    """Work that goes on without its agent, or an agent in a container, whose files we do not see."""
    used = killed(tmp_path / "gone")
    with socket.socket(socket.AF_UNIX, kind) as listener:
        listener.bind(str(used.work_sockets_dir / "t"))
        if kind != socket.SOCK_DGRAM:
            listener.listen()
        assert remove_left(paths) == 0 and used.runtime_dir.exists()
    assert remove_left(paths) == 1


def test_what_does_not_say_whose_it_is_stays(paths: HostPaths, tmp_path: Path) -> None:
    silent, wrong, relative = (killed(tmp_path / name) for name in ("silent", "wrong", "relative"))
    for each in (silent, wrong, relative):
        (each.runtime_dir / "data").unlink()
    (wrong.runtime_dir / "data").symlink_to(tmp_path / "another")  # whose directory has another name
    (relative.runtime_dir / "data").symlink_to("nowhere")
    link = paths.runtime_dir.with_name(paths.runtime_dir.name[:-12] + "0" * 12)
    link.symlink_to(silent.runtime_dir)
    assert remove_left(paths) == 0
    assert all(each.exists() for each in (silent.runtime_dir, wrong.runtime_dir, relative.runtime_dir, link))


def test_a_start_removes_so_many_and_no_more(paths: HostPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actorgrid.actors.host.left_sockets.REMOVED_MAX", 2)
    for number in range(3):
        killed(tmp_path / f"gone{number}")
    assert [remove_left(paths) for _ in range(3)] == [2, 1, 0]
