"""The processes of the gateway as an agent has them: started, left, taken over, killed; and two hosts of a cluster."""

from __future__ import annotations

import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from actorgrid.actors.model_gateway.budget_keeper import BUDGETS_NAME
from actorgrid.actors.model_gateway.month_budgets import read_counts
from actorgrid.actors.model_gateway.process_spec import TABLE_NAME
from actorgrid.actors.model_gateway.usage_store import read_usage_rows
from actorgrid.actors.security.host_material import store_material
from actorgrid.actors.serving import control_frames as words
from actorgrid.actors.serving.table import RoutingStrategy, ServiceTable
from tests.processes import until
from tests.security.rig import Cluster

from .gateway_process import AgentEnd, GatewayProcess
from .running import endpoint, route, table
from .scripted_replica import ScriptedReplica
from .test_keys import a_key
from .test_replica_faults import dead_port

pytestmark = pytest.mark.system
Agents = Callable[[GatewayProcess], AgentEnd]
HELLO: list[Any] = [{"role": "user", "content": "hi"}]


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Callable[..., GatewayProcess]]:
    made: list[GatewayProcess] = []

    def make(name: str = "gw", **spec: Any) -> GatewayProcess:
        made.append(GatewayProcess(tmp_path / name, **spec))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture
def agents() -> Iterator[Callable[[GatewayProcess], AgentEnd]]:
    made: list[AgentEnd] = []

    def make(process: GatewayProcess) -> AgentEnd:
        made.append(AgentEnd(process.folder))
        return made[-1]

    yield make
    for each in made:
        each.close()


def ask(address: str, key: str = "k", **more: Any) -> str:
    with openai.OpenAI(api_key=key, base_url=f"http://{address}/v1", max_retries=0) as client:
        answer = client.chat.completions.create(model="m", messages=HELLO, **more)
    return answer.choices[0].message.content or ""


def ask_soon(address: str, key: str = "k") -> str:
    """Ask until the table has come to the workers."""
    until = time.monotonic() + 60
    while True:
        try:
            return ask(address, key)
        except (openai.NotFoundError, openai.APIConnectionError):
            assert time.monotonic() < until


def test_it_serves_by_the_table_and_tells_what_is_asked(
    processes: Callable[..., GatewayProcess], agents: Agents, replicas: Callable[..., ScriptedReplica]
) -> None:
    process = processes(workers=2)
    agent = agents(process)
    replica = replicas()
    agent.use(replace(table(route(endpoint(replica))), sequence=9))
    assert ask_soon(agent.hello.client_address) == "ab"
    for _ in range(9):
        ask(agent.hello.client_address)
    told = 0
    while told < 10:
        report = agent.report()
        assert report.table_sequence == 9
        told = sum(each.requests_total for each in report.demands)
    while (rows := read_usage_rows(process.folder, "model", 0.0)[0]) == [] or rows[0]["requests"] < 10:
        agent.report()
    assert [(row["key"], row["requests"], row["completion_tokens"]) for row in rows] == [("m", 10, 20)]


def test_a_request_for_nobody_wakes_the_agent_at_once(processes: Callable[..., GatewayProcess], agents: Agents) -> None:
    process = processes()
    agent = agents(process)
    agent.use(table(route(reason="there is none yet")))
    with pytest.raises((openai.InternalServerError, openai.NotFoundError, openai.APIConnectionError)):
        while True:
            ask_soon(agent.hello.client_address)
    assert agent.hear(words.WakeService).service == "chat"


def test_a_table_that_cannot_be_read_is_refused_and_the_last_goes_on(
    processes: Callable[..., GatewayProcess], agents: Agents, replicas: Callable[..., ScriptedReplica]
) -> None:
    process = processes()
    agent = agents(process)
    agent.use(table(route(endpoint(replicas()))))
    assert ask_soon(agent.hello.client_address) == "ab"
    for text in (b"", b"{}", b"[1]", b'{"sequence":1,"host":"x","version":99}'):
        agent.say(words.UseTable(text))
        assert agent.hear(words.TableRefused).words
    assert ask(agent.hello.client_address) == "ab"


@pytest.mark.parametrize("frame", [["nonsense"], ["table", 1], ["stop", -1]])
def test_an_agent_that_talks_nonsense_is_hung_up_on_and_the_gateway_goes_on(
    processes: Callable[..., GatewayProcess], agents: Agents, frame: list[Any]
) -> None:
    process = processes()
    agent = agents(process)
    agent.raw(frame)
    with pytest.raises((AssertionError, ConnectionResetError)):
        while True:
            agent.report()
    assert agents(process).hello.pid == process.process.pid


def test_it_goes_on_without_an_agent_and_the_next_one_takes_it_over(
    processes: Callable[..., GatewayProcess], agents: Agents, replicas: Callable[..., ScriptedReplica]
) -> None:
    process = processes(workers=2)
    agent = agents(process)
    address = agent.hello.client_address
    agent.use(table(route(endpoint(replicas()))))
    ask_soon(address)
    agent.close()
    process.workers[0].kill()
    for _ in range(20):
        assert ask_soon(address) == "ab", "another worker is started, and who connects meanwhile waits"
    again = agents(process)
    assert (again.hello.pid, again.hello.client_address) == (process.process.pid, address)
    while not again.report().demands:
        pass


def test_one_that_starts_anew_serves_by_the_last_table_without_an_agent(
    processes: Callable[..., GatewayProcess], agents: Agents, replicas: Callable[..., ScriptedReplica]
) -> None:
    process = processes()
    agent = agents(process)
    address = agent.hello.client_address
    agent.use(table(route(endpoint(replicas()))))
    ask_soon(address)
    process.kill()
    processes(port=int(address.rpartition(":")[2]))
    assert ask_soon(address) == "ab"


def test_a_last_table_that_is_damaged_is_left(
    processes: Callable[..., GatewayProcess], agents: Agents, tmp_path: Path
) -> None:
    (tmp_path / "gw").mkdir()
    (tmp_path / "gw" / TABLE_NAME).write_bytes(b"\x00{")
    agent = agents(processes())
    assert agent.report().table_sequence == 0


def test_told_to_stop_it_finishes_what_it_has(
    processes: Callable[..., GatewayProcess], agents: Agents, replicas: Callable[..., ScriptedReplica]
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    process = processes()
    agent = agents(process)
    replica = replicas()
    agent.use(table(route(endpoint(replica))))
    ask_soon(agent.hello.client_address)
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(ask, agent.hello.client_address, extra_headers={"x-test": "slow"})
        assert replica.wait_for(2).reached.wait(30)
        agent.say(words.StopGateway(30.0))
        until = time.monotonic() + 30
        while time.monotonic() < until:
            try:
                ask(agent.hello.client_address)
            except (openai.APIConnectionError, openai.APIStatusError):
                break  # no more are taken
        replica.go_on.set()
        assert asked.result(60) == "ab"
    assert process.process.wait(60) == 0


def test_it_does_not_listen_for_other_machines_without_tls(processes: Callable[..., GatewayProcess]) -> None:
    assert processes(listen="0.0.0.0").process.wait(60) == 1


def test_clients_that_come_at_once_find_room_before_a_worker_looks(processes: Callable[..., GatewayProcess]) -> None:
    process = processes()
    agent = AgentEnd(process.folder)
    address, _, port = agent.hello.client_address.rpartition(":")
    with urllib.request.urlopen(f"http://{agent.hello.client_address}/health") as answer:
        assert answer.status == 200, "a worker serves"
    with ExitStack() as opened:
        opened.callback(agent.close)
        for worker in process.workers:
            worker.suspend()
            opened.callback(worker.resume)
        for _ in range(300):
            opened.enter_context(socket.create_connection((address, int(port)), 20))


# -- two hosts


@pytest.fixture
def two_hosts(
    processes: Callable[..., GatewayProcess], replicas: Callable[..., ScriptedReplica], tmp_path: Path
) -> Iterator[Any]:
    cluster = Cluster()
    agents: dict[str, AgentEnd] = {}
    for name in ("host-a", "host-b"):
        security = tmp_path / name / "security"
        store_material(security, cluster.host(name, ("127.0.0.1",)))
        processes(name, security=str(security), peer_listen="127.0.0.1")
        agents[name] = AgentEnd(tmp_path / name)
    yield agents
    for agent in agents.values():
        agent.close()


def tables(agents: dict[str, AgentEnd], replica: ScriptedReplica, **more: Any) -> dict[str, ServiceTable]:
    there = endpoint(replica, 0, host="host-b", gateway=agents["host-b"].hello.peer_address)
    made = table(route(there, **more), members=("host-a", "host-b"))
    peers = {"host-a": "host-b", "host-b": "host-a"}
    return {
        name: replace(made, host=name, peers=(agents[peers[name]].hello.peer_address,)) for name in ("host-a", "host-b")
    }


def test_any_host_answers_for_a_replica_of_another(
    two_hosts: dict[str, AgentEnd], replicas: Callable[..., ScriptedReplica]
) -> None:
    replica = replicas()
    for name, made in tables(two_hosts, replica).items():
        two_hosts[name].use(made)
    address = two_hosts["host-a"].hello.client_address
    until = time.monotonic() + 60
    while True:
        try:
            assert ask(address) == "ab"
            break
        except (openai.APIStatusError, openai.APIConnectionError):
            assert time.monotonic() < until
    with openai.OpenAI(api_key="k", base_url=f"http://{address}/v1", max_retries=0) as client:
        chunks = list(client.chat.completions.create(model="m", messages=HELLO, stream=True))
    assert [chunk.choices[0].delta.content for chunk in chunks] == ["a", "b", None]
    seen = replica.seen[-1]
    assert seen.header("x-actorgrid-replica") is None and seen.header("authorization") is None
    assert (seen.header("x-request-id") or "").startswith("req-"), "one id on the whole way"
    replica.plan = "pause"
    count = len(replica.seen)
    with openai.OpenAI(api_key="k", base_url=f"http://{address}/v1", max_retries=0) as client:
        stream = client.chat.completions.create(model="m", messages=HELLO, stream=True)
        next(iter(stream))
        seen = replica.wait_for(count + 1)
    assert seen.closed.wait(30), "gone clients are told of over two gateways"


def test_a_replica_of_another_host_that_refuses_loses_no_request(
    two_hosts: dict[str, AgentEnd], replicas: Callable[..., ScriptedReplica]
) -> None:
    replica = replicas()
    gateway = two_hosts["host-b"].hello.peer_address
    there = [endpoint(port, at, host="host-b", gateway=gateway) for at, port in enumerate((dead_port(), replica))]
    made = table(route(*there), members=("host-a", "host-b"))
    for name in two_hosts:
        two_hosts[name].use(replace(made, host=name))
    while two_hosts["host-b"].report().table_sequence != 1 or two_hosts["host-a"].report().table_sequence != 1:
        pass
    address = two_hosts["host-a"].hello.client_address
    for _ in range(10):
        assert ask(address) == "ab"
    # One whose gateway has not heard of it (yet), or not any more.
    two_hosts["host-b"].use(replace(made, sequence=2, host="host-b", services=(route(there[1]),)))
    while two_hosts["host-b"].report().table_sequence != 2:
        pass
    for _ in range(10):
        assert ask(address) == "ab"


def test_a_gateway_of_no_member_is_not_served(
    two_hosts: dict[str, AgentEnd], replicas: Callable[..., ScriptedReplica]
) -> None:
    replica = replicas()
    made = tables(two_hosts, replica)
    two_hosts["host-a"].use(made["host-a"])
    two_hosts["host-b"].use(replace(made["host-b"], members=("host-b",)))
    while two_hosts["host-b"].report().table_sequence != 1 or two_hosts["host-a"].report().table_sequence != 1:
        pass
    for _ in range(5):
        with pytest.raises((openai.APIStatusError, openai.APIConnectionError)):
            ask(two_hosts["host-a"].hello.client_address)
    assert not replica.seen


def test_who_has_no_certificate_gets_nothing(two_hosts: dict[str, AgentEnd]) -> None:
    import ssl

    address, _, port = two_hosts["host-b"].hello.peer_address.rpartition(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((address, int(port)), 20) as plain:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            with context.wrap_socket(plain) as tls:
                tls.sendall(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
                assert tls.recv(100) == b""
                raise ConnectionError


def spent(address: str, key: str) -> bool:
    """Whether the key's budget is spent there."""
    try:
        ask_soon(address, key)
    except openai.RateLimitError as error:
        assert error.code == "insufficient_quota"
        return True
    except openai.InternalServerError:
        pass  # a slow machine: the other gateway was not reached in time, and the request counts
    return False


def counted(kept: Path) -> int:
    """How many requests of all hosts are in that file."""
    return sum(row.spent.requests for row in read_counts(kept.read_bytes())[1])


def test_a_budget_is_one_over_hosts_workers_and_restarts(
    two_hosts: dict[str, AgentEnd],
    processes: Callable[..., GatewayProcess],
    agents: Agents,
    replicas: Callable[..., ScriptedReplica],
    tmp_path: Path,
) -> None:
    text, key = a_key(requests_per_month=12)
    made = {name: replace(each, keys=(key,)) for name, each in tables(two_hosts, replicas()).items()}
    for name in two_hosts:
        two_hosts[name].use(made[name])
    here, there = (two_hosts[name].hello.client_address for name in ("host-a", "host-b"))
    while not spent(here, text):
        pass
    asked = 0
    for _ in range(2):
        two_hosts["host-b"].report()  # a second each: it has heard of the other by then, or with the next
    while not spent(there, text):
        asked += 1
        assert asked < 11, "what was used at the other host counts"
        for _ in range(2):
            two_hosts["host-b"].report()
    kept = tmp_path / "host-a" / BUDGETS_NAME
    until(lambda: kept.exists() and counted(kept) >= 12, "it is on the disk")
    two_hosts["host-a"].close()
    (tmp_path / "alone").mkdir()
    kept.rename(tmp_path / "alone" / BUDGETS_NAME)
    alone = agents(processes("alone"))
    alone.use(replace(made["host-a"], peers=(), services=(route(endpoint(replicas())),)))
    assert spent(alone.hello.client_address, text), "one that begins anew, and hears nobody, knows what was used"


def test_gateways_of_two_hosts_agree_on_where_a_prompt_is_known(
    two_hosts: dict[str, AgentEnd], replicas: Callable[..., ScriptedReplica]
) -> None:
    made = [replicas(), replicas()]
    endpoints = [endpoint(each, at, host="host-b") for at, each in enumerate(made)]
    peers = two_hosts["host-b"].hello.peer_address
    endpoints = [replace(each, gateway=peers) for each in endpoints]
    common = table(route(*endpoints, strategy=RoutingStrategy.PREFIX_COST), members=("host-a", "host-b"))
    for name, other in (("host-a", "host-b"), ("host-b", "host-a")):
        two_hosts[name].use(replace(common, host=name, peers=(two_hosts[other].hello.peer_address,)))

    def chat(name: str, system: str, text: str) -> None:
        messages: list[Any] = [{"role": "system", "content": system}, {"role": "user", "content": text}]
        address = two_hosts[name].hello.client_address
        with openai.OpenAI(api_key="k", base_url=f"http://{address}/v1", max_retries=0) as client:
            client.chat.completions.create(model="m", messages=messages)

    until = time.monotonic() + 60
    for name in two_hosts:
        while True:
            try:
                chat(name, "short", "first")
                break
            except (openai.APIStatusError, openai.APIConnectionError):
                assert time.monotonic() < until
    for number in range(8):  # by chance alone, they would agree in one of 256 runs
        system, before = f"{number} be kind and thorough " * 500, [len(each.seen) for each in made]
        chat("host-a", system, "first")
        place = next(at for at, each in enumerate(made) if len(each.seen) > before[at])
        while figure(two_hosts["host-b"], "prefix_blocks") < figure(two_hosts["host-a"], "prefix_blocks") or figure(
            two_hosts["host-b"], "requests_elsewhere"
        ):
            assert time.monotonic() < until + 60
        chat("host-b", system, "second")
        assert len(made[place].seen) == before[place] + 2


def figure(agent: AgentEnd, name: str) -> int:
    with urllib.request.urlopen(f"http://{agent.hello.client_address}/metrics") as answer:
        text = answer.read().decode()
    return int(next(line for line in text.splitlines() if name in line).rpartition(" ")[2])
