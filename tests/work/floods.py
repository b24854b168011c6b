"""Floods and flights that hostile jobs try, alike for each kind of agent: what each ends in, and that the next runs."""

from __future__ import annotations

import resource

import psutil

from tests.work.hostile_jobs import DAEMON, FORK_BOMB, LOG_FLOOD, MEMORY_FLOOD
from tests.work.rig import Rig, wait_for

FORKS_MAX = 300
SLEEPS_S = "61234"


def allow_few_processes(rig: Rig) -> None:
    """Let work have no more than FORKS_MAX processes of its uid, as the limit of each attempt would, far later."""
    assert rig.manager is not None and rig.manager._zygote.pid is not None
    resource.prlimit(rig.manager._zygote.pid, resource.RLIMIT_NPROC, (FORKS_MAX, FORKS_MAX))


def check_floods(rig: Rig, user: str) -> None:
    """Run them one after the other."""
    allow_few_processes(rig)

    def program(name: str, text: str, *arguments: str, **fields: object) -> dict[str, object]:
        job = rig.run(name, command=["python3", "-c", text, *arguments], user_id=user, **fields)
        assert rig.run(f"after-{name}", command=["echo", "runs"], user_id=user)["state"] == "succeeded"
        return job

    bomb = program("bomb", FORK_BOMB)
    assert bomb["state"] == "succeeded" and rig.output("bomb.1") == "stopped by BlockingIOError True\n"
    assert rig.marked("bomb.1") == []
    program("logs", LOG_FLOOD)
    assert rig.dir("logs.1").output_size("stdout") <= rig.context.settings.work.max_output_bytes + 65_536
    memory = program("memory", MEMORY_FLOOD, resources={"memory_mib": 128})
    assert memory["state"] == "failed" and memory["error"]["code"] == "MemoryLimitExceeded", memory["error"]
    program("daemon", DAEMON, SLEEPS_S)
    wait_for(
        lambda: not [each for each in psutil.process_iter(["cmdline"]) if SLEEPS_S in (each.info["cmdline"] or ())],
        what="the daemon to be gone",
    )
