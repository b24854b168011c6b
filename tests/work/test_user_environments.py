"""Each user whose work is kept apart has a folder of Python environments of their own, of which there are so many."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from actorgrid.actors.work import python_environment_spec
from actorgrid.actors.work.isolation import user_environments
from actorgrid.actors.work.isolation.user_environments import environments_of, hold_environments, make_environments
from actorgrid.actors.work.python_environment_spec import hold_python_environment, prepare_environment
from actorgrid.configs.paths import HostPaths

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")


def test_it_is_the_uids_or_the_users_and_nobody_elses(tmp_path: Path) -> None:
    paths = HostPaths(tmp_path)
    assert environments_of(paths, 70_000, "ann@lab") == tmp_path / "users" / "70000" / "environments"
    by_name = {environments_of(paths, 0, user) for user in ("ann@lab", "bob@lab", "../ann@lab")}
    assert len(by_name) == 3 and all(place.is_relative_to(tmp_path / "users") for place in by_name)


def test_for_a_new_user_the_one_that_was_used_longest_ago_goes_and_none_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_environments, "USERS_MAX", 3)
    places = [tmp_path / "users" / str(number) / "environments" for number in range(5)]
    held = []
    for number, place in enumerate(places[:3]):
        held.append(hold_environments(place))
        make_environments(place, 0)
        shut = place / "x" / "lib" / "python3.11" / "site-packages"
        shut.mkdir(parents=True)
        (shut / "package.py").touch()
        (place / "out").symlink_to(tmp_path)
        shut.chmod(0o555)
        os.utime(place.parent / "environments.lock", (number, number))
    os.close(held.pop(1))
    os.close(held.pop(1))
    (places[1].parent / "environments.0123" / "half").mkdir(parents=True)  # of who was killed while it removed
    for place in places[3:]:
        make_environments(place, 0)
        make_environments(place, 0)
    assert [place.exists() for place in places] == [True, False, True, True, True], "two of these have nothing"
    assert os.listdir(places[1].parent) == ["environments.lock"]
    for place in places[3:]:
        os.close(hold_environments(place))
        (place / "built").mkdir()
    os.utime(places[3].parent / "environments.lock", (9, 9))
    make_environments(tmp_path / "users" / "5" / "environments", 0)
    assert [place.exists() for place in places] == [True, False, False, False, True], "three, with the new one"
    os.close(held.pop())


@root_only
def test_it_belongs_to_the_uid_and_lies_where_only_the_agent_comes_to(tmp_path: Path) -> None:
    place = tmp_path / "users" / "70000" / "environments"
    os.close(hold_environments(place))
    make_environments(place, 70_000)
    assert (place.stat().st_uid, place.stat().st_mode & 0o777) == (70_000, 0o700)
    assert (place.parent.stat().st_uid, place.parent.stat().st_mode & 0o777) == (0, 0o700)


def test_a_build_sees_no_secrets_and_is_held_by_what_the_process_becomes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    class Kept:
        def hold(self, _digest: str) -> int:
            seen["held"] = os.open(tmp_path, os.O_RDONLY)
            return int(seen["held"])

        def get(self, _digest: str, _spec: Any, work: dict[str, str], _progress: Any) -> Any:
            raise FileNotFoundError(repr(work))

    monkeypatch.setattr(python_environment_spec, "environments_in", lambda _wanted: Kept())
    spec: Any = {
        "environment": {"digest": "0" * 64, "path": "/nowhere"},
        "env": {"PATH": "/bin", "TOKEN": "hush"},
        "secrets": {"folder": "/nowhere", "variables": {"TOKEN": "name"}},
        "apart": {"level": "full", "environments": str(tmp_path / "users" / "1" / "environments")},
    }
    with pytest.raises(FileNotFoundError) as raised:
        prepare_environment(spec, print)
    assert "hush" not in str(raised.value) and "/bin" in str(raised.value)
    assert os.get_inheritable(seen["held"])
    os.close(seen["held"])
    # The shim, which is root, has its own lock, in a folder of the agent's.
    before = set(os.listdir("/proc/self/fd"))
    hold_python_environment(spec)
    for fd in set(os.listdir("/proc/self/fd")) - before:
        if os.path.exists(f"/proc/self/fd/{fd}"):
            assert os.readlink(f"/proc/self/fd/{fd}").endswith("users/1/environments.lock")
            os.close(int(fd))
