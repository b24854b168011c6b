"""Transactions on a real chain in memory (py-evm), behind a real HTTP server that speaks its JSON-RPC."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from actorgrid.errors import InvalidWork, TaskFailed
from actorgrid.work_types.registry import find_work_type

eth_tester = pytest.importorskip("eth_tester")
KEY = "0x" + "00" * 31 + "01"  # of the first account that the chain in memory begins with
ANN, BOB = "0x7E5F4552091A69125d5DfCb7b8C2659029395Bdf", "0x2B5AD5c4795c026514f8317c7a215E218DcCD6cF"
ETHER = 10**18


class Chain:
    """A node: the methods that a wallet needs, over a chain that mines each transaction as it comes."""

    def __init__(self) -> None:
        self.tester = eth_tester.EthereumTester(eth_tester.PyEVMBackend())
        self.sent: list[str] = []

    def answer(self, method: str, params: list[Any]) -> Any:
        tester = self.tester
        if method == "eth_chainId":
            return hex(tester.backend.chain.chain_id)
        if method == "eth_getTransactionCount":
            return hex(tester.get_nonce(params[0]))
        if method == "eth_getBlockByNumber":
            return {"baseFeePerGas": hex(tester.get_block_by_number("latest")["base_fee_per_gas"])}
        if method == "eth_estimateGas":
            asked = {"from": params[0]["from"], "to": params[0]["to"], "value": int(params[0]["value"], 16)}
            return hex(tester.estimate_gas(asked))
        if method == "eth_sendRawTransaction":
            self.sent.append(tester.send_raw_transaction(params[0]))
            return self.sent[-1]
        if method == "eth_getTransactionByHash":
            return {"hash": params[0]} if params[0] in self.sent else None
        if method == "eth_getTransactionReceipt":
            found = tester.get_transaction_receipt(params[0])
            numbers = {"blockNumber": "block_number", "status": "status", "gasUsed": "gas_used"}
            return {name: hex(found[own]) for name, own in numbers.items()}
        raise ValueError(f"the method {method} does not exist")


@pytest.fixture(scope="module")
def node() -> Iterator[tuple[Chain, str]]:
    chain = Chain()

    class Door(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer: dict[str, Any] = {"jsonrpc": "2.0", "id": asked["id"]}
            try:
                answer["result"] = chain.answer(asked["method"], asked["params"])
            except Exception as error:  # noqa: BLE001 - what the chain refuses is an answer
                answer["error"] = {"code": -32000, "message": str(error)}
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield chain, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def transact(url: str, **given: Any) -> dict[str, Any]:
    kind = find_work_type("blockchain_transaction")
    plan = kind.plan(kind.checked({"rpc_url": url, "to": BOB, "key_env": "ANNS_KEY", **given}))
    assert plan.function is not None
    found: dict[str, Any] = plan.function(*plan.arguments)
    return found


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANNS_KEY", KEY)


def test_a_transaction_is_signed_sent_and_in_a_block(node: tuple[Chain, str]) -> None:
    chain, url = node
    before = chain.tester.get_balance(BOB)
    done = transact(url, value_wei=2 * ETHER)
    assert (done["from"], done["status"]) == (ANN, 1) and done["block"] >= 1
    assert done["hash"] == chain.sent[-1] and chain.tester.get_balance(BOB) == before + 2 * ETHER
    assert transact(url, value_wei=1)["nonce"] == done["nonce"] + 1


def test_sent_again_with_its_nonce_it_is_one_transaction(node: tuple[Chain, str]) -> None:
    chain, url = node
    nonce, before = chain.tester.get_nonce(ANN), chain.tester.get_balance(BOB)
    fixed = {"nonce": nonce, "value_wei": 5, "gas": 21_000, "max_fee_per_gas_wei": 10**10}
    first = transact(url, **fixed)
    again = transact(url, **fixed)  # an attempt that begins anew after its host was lost
    assert again["hash"] == first["hash"] and again["status"] == 1
    assert chain.tester.get_balance(BOB) == before + 5
    with pytest.raises(TaskFailed, match="refuses eth_sendRawTransaction"):
        transact(url, **{**fixed, "value_wei": 6})


def test_the_key_may_be_in_a_file(node: tuple[Chain, str], tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(KEY + "\n")
    assert transact(node[1], value_wei=1, key_env=None, key_file=str(file))["status"] == 1


@pytest.mark.parametrize(
    ("given", "kind", "says"),
    [
        ({"chain_id": 1}, InvalidWork, "another chain"),
        ({"value_wei": 10**30, "gas": 21_000}, TaskFailed, "refuses"),
        ({"key_env": "NOBODYS_KEY"}, InvalidWork, "holds no private key"),
        ({"key_env": None, "key_file": "/no/such/key"}, InvalidWork, "cannot be read"),
        ({"rpc_url": "http://127.0.0.1:1"}, TaskFailed, "does not answer"),
    ],
)
def test_what_goes_wrong_is_named(node: tuple[Chain, str], given: dict[str, Any], kind: Any, says: str) -> None:
    with pytest.raises(kind, match=says):
        transact(given.pop("rpc_url", node[1]), **given)
