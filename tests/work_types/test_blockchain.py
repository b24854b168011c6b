"""Transactions on a real chain in memory (py-evm), behind a real HTTP server that speaks its JSON-RPC."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from actorgrid.errors import InvalidWork, TaskFailed
from actorgrid.work_types.registry import find_work_type

pytestmark = pytest.mark.skipif(find_spec("eth_tester") is None, reason="eth-tester is not installed")
KEY = "0x" + "00" * 31 + "01"  # of the first account that the chain in memory begins with
ANN, BOB = "0x7E5F4552091A69125d5DfCb7b8C2659029395Bdf", "0x2B5AD5c4795c026514f8317c7a215E218DcCD6cF"
ETHER = 10**18


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of a chain of this file's own."""
    words = [sys.executable, "-m", "tests.work_types.chain"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as chain:
        assert chain.stdout is not None
        yield f"http://127.0.0.1:{int(chain.stdout.readline())}"


def asked(url: str, method: str, *params: Any) -> Any:
    """What the chain itself says."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    with urlopen(Request(url, body), timeout=60) as answer:
        return json.load(answer)["result"]


def balance(url: str, account: str) -> int:
    return int(asked(url, "eth_getBalance", account, "latest"), 16)


def transact(url: str, **given: Any) -> dict[str, Any]:
    kind = find_work_type("blockchain_transaction")
    plan = kind.plan(kind.checked({"rpc_url": url, "to": BOB, "key_env": "ANNS_KEY", **given}))
    assert plan.function is not None
    found: dict[str, Any] = plan.function(*plan.arguments)
    return found


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANNS_KEY", KEY)


def test_a_transaction_is_signed_sent_and_in_a_block(url: str) -> None:
    before = balance(url, BOB)
    done = transact(url, value_wei=2 * ETHER)
    assert (done["from"], done["status"]) == (ANN, 1) and done["block"] >= 1
    assert asked(url, "eth_getTransactionByHash", done["hash"]) == {"hash": done["hash"]}
    assert balance(url, BOB) == before + 2 * ETHER
    assert transact(url, value_wei=1)["nonce"] == done["nonce"] + 1


def test_sent_again_with_its_nonce_it_is_one_transaction(url: str) -> None:
    nonce, before = int(asked(url, "eth_getTransactionCount", ANN, "latest"), 16), balance(url, BOB)
    fixed = {"nonce": nonce, "value_wei": 5, "gas": 21_000, "max_fee_per_gas_wei": 10**10}
    first = transact(url, **fixed)
    again = transact(url, **fixed)  # an attempt that begins anew after its host was lost
    assert again["hash"] == first["hash"] and again["status"] == 1
    assert balance(url, BOB) == before + 5
    with pytest.raises(TaskFailed, match="refuses eth_sendRawTransaction"):
        transact(url, **{**fixed, "value_wei": 6})


def test_the_key_may_be_in_a_file(url: str, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(KEY + "\n")
    assert transact(url, value_wei=1, key_env=None, key_file=str(file))["status"] == 1


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
def test_what_goes_wrong_is_named(url: str, given: dict[str, Any], kind: Any, says: str) -> None:
    with pytest.raises(kind, match=says):
        transact(given.pop("rpc_url", url), **given)
