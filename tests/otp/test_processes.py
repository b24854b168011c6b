"""What the tests themselves ask of processes is exact: a death is seen by whoever heard of it."""

from __future__ import annotations

import subprocess

from tests.processes import is_alive


def test_a_process_whose_pipe_ended_is_not_alive() -> None:
    # The kernel closes the files of a process before it makes it a zombie: seen in most rounds where nothing waits.
    for _ in range(20):
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None and is_alive(process.pid)
            process.kill()
            assert process.stdout.read() == b""
            assert not is_alive(process.pid)
        assert not is_alive(process.pid)  # reaped, too
