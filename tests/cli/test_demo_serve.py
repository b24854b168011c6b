"""The tour of services: it runs on a real host, and says what happened."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from actorgrid.cli import demo_serve
from actorgrid.errors import StartFailed


@pytest.mark.system
@pytest.mark.timeout(300)
def test_the_tour_kills_a_replica_and_no_request_is_lost_that_had_not_begun() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ACTORGRID_")}
    done = subprocess.run(
        [sys.executable, "-m", "actorgrid", "demo", "serve", "--json"],
        capture_output=True,
        text=True,
        timeout=280,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    steps = {step["name"]: step for step in told["steps"]}
    assert told["client"].startswith("openai ")
    assert steps["serving"]["figures"]["replicas"] == 2
    assert steps["chat"]["figures"]["completion_tokens"] > 0 and steps["chat"]["answer"]
    further = steps["further"]["figures"]
    assert 0 < further["cached_tokens"] < further["prompt_tokens"], "the conversation was not read again"
    assert steps["killed"]["figures"]["error"] == "AnswerBroken"
    assert steps["others"]["figures"]["answered"] == steps["others"]["figures"]["asked"] == 6
    assert steps["again"]["answer"].startswith(steps["killed"]["answer"][:40]), "the same seed, of the other replica"
    assert "restored" in steps
    assert steps["none"]["figures"]["after_s"] > 0
    assert steps["back"]["answer"] == steps["chat"]["answer"], "the request that woke it was answered as the first was"


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(StartFailed, match="numpy") as caught:
        demo_serve._check_numpy()
    assert "actorgrid[demo]" in caught.value.hint
