"""Answers of a model over TLS, in a cluster of two hosts: read at the host that does not run it, in each of the ways
there are, gone on with after a break, and broken off where they are made."""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from tests.processes import until
from tests.system.agent import closing_all
from tests.system.cluster_host import ClusterHost, own_address

SERVER = str(Path(__file__).parents[1] / "serving" / "small_server.py")
WORD = "hello"
ASKED: dict[str, Any] = {"model": "far", "messages": [{"role": "user", "content": "hi"}]}
HANGS_UP_S = 20.0
Talk = Callable[[aiohttp.ClientSession], Awaitable[Any]]


@dataclass
class FarModel:
    """A model on the second host, and how a client of another machine comes to the first."""

    host: ClusterHost
    key: str
    url: str
    models_url: str
    grpc_address: str
    authority: Path
    gate: Path

    def run(self, talk: Talk) -> Any:
        """Let *talk* ask the first host over HTTPS, with the authority alone to trust."""

        async def ask() -> Any:
            headers = {"Authorization": f"Bearer {self.key}"}
            connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=str(self.authority)))
            async with aiohttp.ClientSession(self.url, headers=headers, connector=connector) as session:
                told = await asyncio.wait_for(talk(session), 60)
            await hung_up()
            return told

        return asyncio.run(ask())

    def go_on(self) -> None:
        (self.gate / "go").touch()

    def hold_back(self) -> None:
        for name in ("go", "gone"):
            (self.gate / name).unlink(missing_ok=True)


@pytest.fixture(scope="module")
def far_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarModel]:
    address = own_address()
    if not address:
        pytest.skip("this machine has no address beyond loopback, where hosts speak TLS alone")
    folder = tmp_path_factory.mktemp("tls")
    gate = folder / "gate"
    gate.mkdir()
    first = ClusterHost(folder / "first", "simulated:1xH100-80GB", f"grpc.listen={address}:0", address=address)
    second = ClusterHost(folder / "second", "simulated:3xA100-40GB")  # an address is one host's
    with closing_all((first, second)):
        first.found()
        second.join(first, first.token()["token"])
        client = first.client()
        command = [sys.executable, SERVER, "{port}", "--say", WORD, "--gate", str(gate)]
        there: dict[str, Any] = {"gpus": 1, "gpu_models": ["A100-40GB"], "cpus": 0.1, "drain_s": 5.0}
        service = client.serve("far", command, **there)
        service.wait_ready(90)
        key = first.cli_json("key", "create", "--user", "ann")
        authority = folder / "authority.pem"
        authority.write_text(first.cli("ca", "certificate").stdout)

        def served() -> str:
            return str(client.http.get("/api/services")["url"])

        def door() -> str:
            told = json.dumps(first.cli_json("inspect", "gateway"))
            found = re.search(rf'"grpc": "({re.escape(address)}:\d+)"', told)
            return found[1] if found else ""

        models_url = str(until(served, "the model gateway", 60))
        assert models_url.startswith(f"https://{address}:"), "beyond loopback TLS alone is spoken"
        made = FarModel(first, key["key"], key["url"], models_url, until(door, "gRPC", 60), authority, gate)
        assert made.url.startswith(f"https://{address}:")

        def is_known() -> bool:
            async def ask(session: aiohttp.ClientSession) -> bool:
                async with session.get(f"{models_url}/models") as answer:
                    listed = await answer.json()
                    return any(each["id"] == "far" for each in listed.get("data", []))

            return bool(made.run(ask))

        until(is_known, "the first host's gateway knows the model and the key", 60)
        yield made


@pytest.fixture
def model(far_model: FarModel) -> FarModel:
    far_model.hold_back()
    return far_model


async def hung_up() -> None:
    """Wait until the loop has nothing open but its own pipe: TLS takes some turns to close, and nobody waits for it."""
    selector = getattr(asyncio.get_running_loop(), "_selector")  # noqa: B009 - typed as if there were none
    async with asyncio.timeout(HANGS_UP_S):
        while len(selector.get_map()) > 1:
            await asyncio.sleep(0.005)


async def begin(session: aiohttp.ClientSession, **more: Any) -> str:
    async with session.post("/api/token-streams", json={**ASKED, **more}) as answer:
        told = await answer.json()
        assert answer.status == 200, told
        return str(told["stream_id"])


def text_of(told: list[dict[str, Any]]) -> str:
    choices = [choice for each in told if each["event"] == "token" for choice in each["data"]["choices"]]
    return "".join(choice["delta"].get("content", "") for choice in choices)


def test_over_websocket_it_goes_on_behind_a_connection_that_was_lost(model: FarModel) -> None:
    async def talk(session: aiohttp.ClientSession) -> tuple[str, list[dict[str, Any]], int | None]:
        stream = await begin(session, resume_s=60)
        async with session.ws_connect(f"/api/ws/token-streams/{stream}") as socket:
            first = await socket.receive_json()
            socket._response.connection.transport.abort()
        model.go_on()
        async with session.ws_connect(f"/api/ws/token-streams/{stream}?after={first['id']}") as socket:
            told = [json.loads(message.data) async for message in socket]
            return text_of([first]), told, socket.close_code

    first, told, code = model.run(talk)
    assert first == WORD[0] and text_of(told) == WORD[1:] and code == 1000
    assert told[-1] == {"event": "end", "data": {**told[-1]["data"], "reason": "done"}}


def test_over_server_sent_events_it_goes_on_too(model: FarModel) -> None:
    async def talk(session: aiohttp.ClientSession) -> tuple[bytes, bytes]:
        stream = await begin(session, resume_s=60)
        async with session.get(f"/api/token-streams/{stream}") as answer:
            first = b""
            while b"id: 1\n" not in first or not first.endswith(b"\n\n"):
                first += await answer.content.readline()
        model.go_on()
        async with session.get(f"/api/token-streams/{stream}", headers={"Last-Event-ID": "1"}) as answer:
            return first, await answer.read()

    first, rest = model.run(talk)
    assert b'"content":"h"' in first.replace(b": ", b":")
    ids = [line for line in rest.splitlines() if line.startswith(b"id: ")]
    assert ids[: len(WORD) - 1] == [b"id: %d" % number for number in range(2, len(WORD) + 1)]


def test_over_grpc_it_goes_on_too(model: FarModel) -> None:
    grpc = pytest.importorskip("grpc", reason="grpcio is not installed: pip install 'actorgrid[grpc]'")
    from google.protobuf.struct_pb2 import Struct

    from actorgrid.rpc import actorgrid_pb2 as pb
    from actorgrid.rpc import actorgrid_pb2_grpc as stubs

    said = Struct()
    said.update(ASKED["messages"][0])
    shown = (("authorization", f"Bearer {model.key}"),)
    trusted = grpc.ssl_channel_credentials(model.authority.read_bytes())
    with grpc.secure_channel(model.grpc_address, trusted) as channel:
        chat = stubs.ServicesStub(channel).Chat
        call = chat(pb.ChatRequest(model="far", messages=[said], resume_s=60), metadata=shown, timeout=60)
        began, first = next(call), next(call)
        call.cancel()
        model.go_on()
        behind = pb.ChatRequest(stream_id=began.stream_id, after=first.id)
        rest = list(chat(behind, metadata=shown, timeout=60))
    assert first.text == WORD[0] and "".join(each.text for each in rest) == WORD[1:]


@pytest.mark.parametrize("way", ["reader", "delete", "openai"])
def test_what_nobody_reads_any_more_is_broken_off_on_the_other_host(model: FarModel, way: str) -> None:
    async def leave(session: aiohttp.ClientSession) -> None:
        stream = await begin(session)
        async with session.ws_connect(f"/api/ws/token-streams/{stream}") as socket:
            await socket.receive_json()
            if way == "delete":
                async with session.delete(f"/api/token-streams/{stream}") as answer:
                    assert (await answer.json())["cancelled"] is True

    if way == "openai":
        trusted = openai.DefaultHttpxClient(verify=ssl.create_default_context(cafile=str(model.authority)))
        with openai.OpenAI(base_url=model.models_url, api_key=model.key, http_client=trusted) as client:
            with client.chat.completions.create(**ASKED, stream=True) as chunks:
                assert next(iter(chunks)).choices[0].delta.content == WORD[0]
    else:
        model.run(leave)
    until((model.gate / "gone").exists, "the replica is told", 20)


def test_openais_client_trusts_the_certificate_that_the_command_prints(model: FarModel) -> None:
    model.go_on()
    program = (
        "import openai, sys\n"
        "client = openai.OpenAI(base_url=sys.argv[1], api_key=sys.argv[2], max_retries=0)\n"
        "asked = [{'role': 'user', 'content': 'hi'}]\n"
        "for chunk in client.chat.completions.create(model='far', messages=asked, stream=True):\n"
        "    print(chunk.choices[0].delta.content or '', end='')\n"
    )
    command = [sys.executable, "-c", program, model.models_url, model.key]
    for trusts in (False, True):
        environment = {name: value for name, value in os.environ.items() if name != "SSL_CERT_FILE"}
        environment |= {"SSL_CERT_FILE": str(model.authority)} if trusts else {}
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
        assert (done.stdout if trusts else done.returncode) == (WORD if trusts else 1), done.stderr[-2000:]
