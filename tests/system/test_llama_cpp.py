"""llama.cpp's own server, unmodified, with random weights. Optional: it wants xllamacpp and gguf."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.processes import until
from tests.serving.random_gguf import write
from tests.system.agent import Agent

SERVER = Path(__file__).resolve().parents[1] / "serving" / "llama_server.py"
MISSING = [name for name in ("xllamacpp", "gguf") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(
        bool(MISSING), reason=f"pip install {' '.join(MISSING)}: a server of 100 MB, tested where it is"
    ),
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    model = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write(str(model))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, str(SERVER), str(model), str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        # Its own retries are the wait until it listens.
        with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=10, timeout=60) as found:
            assert [model.id for model in found.models.list()] == ["tiny"]
            yield found.with_options(max_retries=0)
    finally:
        process.terminate()
        process.wait(30)


QUESTION = "Which host gets the work, and why? " * 20


def test_a_prompt_that_was_read_is_not_read_again(client: openai.OpenAI) -> None:
    first, second = (
        client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": QUESTION}], max_tokens=4, temperature=0
        )
        for _ in range(2)
    )
    assert first.usage is not None and second.usage is not None
    assert first.usage.prompt_tokens_details is not None and second.usage.prompt_tokens_details is not None
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert second.usage.prompt_tokens_details.cached_tokens == second.usage.prompt_tokens - 1
    assert first.choices[0].message.content == second.choices[0].message.content


def test_it_streams_with_usage(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "x"}],
            max_tokens=8,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens <= 8


@pytest.mark.timeout(300)
def test_a_conversation_comes_back_to_the_replica_that_has_read_it(shared_agent: Agent, tmp_path: Path) -> None:
    """Two replicas behind the gateway: what shows that a prompt was routed by its beginning is that it was cached."""
    write(str(tmp_path / "tiny.gguf"))
    admin = shared_agent.client()
    command = [sys.executable, str(SERVER), str(tmp_path / "tiny.gguf"), "{port}"]
    env = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    service = admin.serve("tiny", command, replicas=2, cpus=0.1, env=env)
    service.wait_ready(120)
    url = until(lambda: admin.http.get("/api/services")["url"], "the model gateway serves", 60)
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as gateway:
        for number in range(6):
            turns: list[ChatCompletionMessageParam] = [{"role": "user", "content": f"{number}: {QUESTION}"}]
            first = gateway.chat.completions.create(model="tiny", messages=turns, max_tokens=4, temperature=0)
            turns += [
                {"role": "assistant", "content": first.choices[0].message.content},
                {"role": "user", "content": "And then?"},
            ]
            second = gateway.chat.completions.create(model="tiny", messages=turns, max_tokens=4, temperature=0)
            assert first.usage is not None and second.usage is not None
            assert second.usage.prompt_tokens_details is not None
            cached = second.usage.prompt_tokens_details.cached_tokens or 0
            assert cached > 0.9 * first.usage.prompt_tokens, "it went to the other replica"
    service.remove()
