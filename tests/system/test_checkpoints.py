"""A job and an actor whose host is lost go on, on another one, from what they saved last: real agents and processes."""

from __future__ import annotations

import os
import re
import signal
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

import actorgrid
from actorgrid.client.client import Client
from actorgrid.errors import ActorRestarted
from tests.processes import until
from tests.system.cluster_host import Two, ran_on

pytestmark = pytest.mark.system

TRAINING = """
test -e ckpt/step && echo from $ACTORGRID_CHECKPOINT_FROM at $(cat ckpt/step)
step=$(cat ckpt/step 2>/dev/null || echo 0)
while ! test -e {stop}; do
    step=$((step + 1))
    echo $step > ckpt/step.tmp && mv ckpt/step.tmp ckpt/step
    sleep 0.1
done
"""


@actorgrid.actor(gpus=0.4, cpus=0.1, detached=True, max_restarts=3, checkpoint_every=100)
class Tally:
    """Counts, and can say from where on."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, number: int) -> int:
        self.count += number
        return self.count

    def told(self) -> tuple[int, int | None, int]:
        return self.count, actorgrid.current_task().restored_from, os.getpid()

    def save(self) -> int:
        return self.count

    def load(self, state: int) -> None:
        self.count = state


def checkpoint_of(client: Client, job_id: str) -> dict[str, Any]:
    return client.job(job_id).get("last_checkpoint") or {"attempt": 0, "number": 0}


def answer(client: Client, future: Any, job_id: str) -> Any:
    """What a call of the actor *job_id* gives; where it gives nothing in time, what is known of the actor's job."""
    try:
        return future.result(100)
    except TimeoutError:
        raise AssertionError(f"no answer: {client.job(job_id)}, {client.why(job_id)}") from None


def test_both_go_on_where_they_were_when_their_host_is_lost(two: Two, tmp_path: Path) -> None:
    first, second = two
    with closing(first.client()) as client:
        # The first host has no room, so that both begin on the second.
        blocker = first.submit("--gpus", "1", "--gpu-model", "H100-80GB", "--", "sleep", "600")
        until(lambda: client.job(blocker)["state"] == "running", "the first host is full")
        stop = tmp_path / "stop"
        job_id = first.submit(
            *("--gpus", "0.4", "--checkpoint", "ckpt", "--checkpoint-every", "1s"),
            *("--cwd", str(tmp_path), "--", "sh", "-c", TRAINING.format(stop=stop)),
        )
        tally = Tally.on(client).create()
        of_tally = tally._reference.job_id
        assert [answer(client, tally.add(number), of_tally) for number in (1, 2, 3)] == [1, 3, 6]
        entered = tally.checkpoint().result(100)
        assert (entered.attempt_number, entered.number) == (1, 1)
        tally.add(4).result(100)
        # Its worker is killed: what came behind the checkpoint is gone with it, and nothing else.
        os.kill(tally.told().result(100)[2], signal.SIGKILL)
        assert tally.told.options(retries=3)().result(100)[:2] == (6, 1)
        assert tally.add(10).result(100) == 16
        assert tally.checkpoint().result(100).attempt_number == 2
        # The server that keeps them is killed, and comes back.
        until(lambda: checkpoint_of(client, job_id)["number"] >= 2, "the job has saved")
        os.kill(int(second.pid_of("worker_manager") or 0), signal.SIGKILL)
        number = checkpoint_of(client, job_id)["number"]
        until(lambda: checkpoint_of(client, job_id)["number"] > number, "it goes on saving")
        lost = ran_on(client.job(job_id))
        assert ran_on(client.job(tally._reference.job_id)) == lost

        client.cancel(blocker)
        victims = second.processes()
        second.kill()
        for victim in victims:
            with suppress(psutil.NoSuchProcess):
                victim.kill()
        last = int(checkpoint_of(client, job_id)["number"])
        until(lambda: len(client.job(job_id)["attempts"]) == 2, "the job has another attempt")
        until(lambda: client.job(job_id)["state"] == "running", "it runs again")
        assert ran_on(client.job(job_id)) != lost
        with suppress(ActorRestarted):
            tally.add(0).result(100)
        assert tally.told().result(100)[:2] == (16, 2)
        until(lambda: checkpoint_of(client, job_id)["attempt"] == 2, "it saves again")
        stop.touch()
        assert client.wait(job_id, 100)["state"] == "succeeded"
        said = re.match(rb"from 1 at (\d+)\n", b"".join(client.logs(job_id)))
        assert said is not None and int(said[1]) >= last, "a step at least for each checkpoint"
        tally.stop()
