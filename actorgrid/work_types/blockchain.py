"""A transaction of an Ethereum chain: signed where the work runs, and handed to a node over its JSON-RPC endpoint.

The key never is an argument: those are kept by the cluster. It is read where the work runs, from a file or a variable.
A transaction is sent once: with the same nonce, gas and fee it has the same bytes and hash, so that an attempt which
begins again finds it on the chain. Without a nonce each attempt would take the next one, and what a node estimates of
the others changes; so all three are to be said where the work may be tried again.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from typing import Annotated, Any

from pydantic import Field, model_validator

from actorgrid.errors import InvalidWork, TaskFailed

from .base import WorkArguments, WorkPlan, WorkType
from .targets import missing_library

Address = Annotated[str, Field(pattern=r"^0x[0-9a-fA-F]{40}$")]
REPLY_BYTES_MAX = 2**20
POLL_S = 0.5


class TransactionArguments(WorkArguments):
    """A transaction, the node it is handed to, and where its key is."""

    rpc_url: str = Field(pattern=r"^https?://[^\s]+$", max_length=2_000)
    to: Address | None = Field(default=None, description="None: it makes a contract of data")
    value_wei: int = Field(default=0, ge=0, lt=2**256)
    data: str = Field(default="0x", pattern=r"^0x([0-9a-fA-F]{2})*$", max_length=2**18)
    key_env: str | None = Field(default=None, max_length=200, description="a variable that has the private key")
    key_file: str | None = Field(default=None, max_length=4_096, description="a file that has it, on the host")
    nonce: int | None = Field(default=None, ge=0, lt=2**63, description="None: the next; say it where it is retried")
    gas: int | None = Field(default=None, ge=21_000, le=100_000_000, description="None: what the node estimates")
    max_fee_per_gas_wei: int | None = Field(default=None, ge=0, lt=2**128)
    max_priority_fee_per_gas_wei: int = Field(default=1_000_000_000, ge=0, lt=2**128)
    chain_id: int | None = Field(default=None, ge=1, lt=2**63, description="refused where the node is of another chain")
    wait_receipt_s: float = Field(default=60.0, ge=0, le=86_400, description="0: do not wait until it is in a block")

    @model_validator(mode="after")
    def _one_key(self) -> TransactionArguments:
        if (self.key_env is None) == (self.key_file is None):
            raise ValueError("one of key_env and key_file says where the key is")
        if self.to is None and self.data == "0x":
            raise ValueError("a transaction without to makes a contract: give its data")
        return self


class BlockchainTransaction(WorkType):
    """Signs a transaction and submits it."""

    name = "blockchain_transaction"
    summary = "sign a transaction and hand it to an Ethereum node over JSON-RPC"
    arguments = TransactionArguments

    def plan(self, arguments: TransactionArguments) -> WorkPlan:
        """Run it where the key is."""
        return WorkPlan(transact, (arguments.model_dump(),))


def transact(given: dict[str, Any]) -> dict[str, Any]:
    """Sign and submit: ``hash``, ``from``, ``nonce``; once it is in a block ``block`` and ``status`` (1: it succeeded).

    Raises InvalidWork for a key or a library that is not there, TaskFailed for what the node refuses.
    """
    try:
        from eth_account import Account
    except ImportError as error:
        raise missing_library(error, "ethereum") from error
    account = Account.from_key(_key(given))
    ask = JsonRpc(given["rpc_url"])
    chain_id = int(ask("eth_chainId"), 16)
    if given["chain_id"] not in (None, chain_id):
        raise InvalidWork("the node is of another chain", asked=f"chain {given['chain_id']}", found=f"chain {chain_id}")
    nonce = given["nonce"]
    if nonce is None:
        nonce = int(ask("eth_getTransactionCount", account.address, "pending"), 16)
    fields: dict[str, Any] = {
        "type": 2,
        "chainId": chain_id,
        "nonce": nonce,
        "value": given["value_wei"],
        "data": given["data"],
        "maxPriorityFeePerGas": given["max_priority_fee_per_gas_wei"],
        "maxFeePerGas": given["max_fee_per_gas_wei"],
    }
    if given["to"] is not None:
        fields["to"] = bytes.fromhex(given["to"][2:])
    if fields["maxFeePerGas"] is None:
        base = int(ask("eth_getBlockByNumber", "latest", False)["baseFeePerGas"], 16)
        fields["maxFeePerGas"] = 2 * base + fields["maxPriorityFeePerGas"]
    if given["gas"] is None:
        asked = {"from": account.address, "value": hex(given["value_wei"]), "data": given["data"]}
        fields["gas"] = int(ask("eth_estimateGas", {**asked, **({"to": given["to"]} if given["to"] else {})}), 16)
    else:
        fields["gas"] = given["gas"]
    signed = account.sign_transaction(fields)
    hash = "0x" + bytes(signed.hash).hex()
    try:
        ask("eth_sendRawTransaction", "0x" + bytes(signed.raw_transaction).hex())
    except TaskFailed:
        # An attempt before this one may have sent it: then the chain knows it by its hash.
        if ask("eth_getTransactionByHash", hash) is None:
            raise
    answer = {"hash": hash, "from": account.address, "nonce": nonce, "chain_id": chain_id}
    return {**answer, **_receipt(ask, hash, given["wait_receipt_s"])}


def _receipt(ask: JsonRpc, hash: str, wait_s: float) -> dict[str, Any]:
    until = time.monotonic() + wait_s
    while wait_s > 0:
        found = ask("eth_getTransactionReceipt", hash)
        if found is not None:
            block, status = int(found["blockNumber"], 16), int(found["status"], 16)
            return {"block": block, "status": status, "gas_used": int(found["gasUsed"], 16)}
        if time.monotonic() >= until:
            break
        time.sleep(min(POLL_S, max(0.0, until - time.monotonic())))
    return {"block": None, "status": None, "gas_used": None}


def _key(given: dict[str, Any]) -> str:
    if given["key_env"] is not None:
        key = os.environ.get(given["key_env"], "")
        where = f"the variable {given['key_env']}"
    else:
        where = given["key_file"]
        try:
            with open(where, encoding="ascii") as file:
                key = file.read(200)
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidWork(
                f"{where} cannot be read where this work runs", asked=where, found=type(error).__name__
            ) from error
    digits = key.strip().removeprefix("0x")
    if len(digits) != 64 or any(sign not in "0123456789abcdefABCDEF" for sign in digits):
        raise InvalidWork(
            f"{where} holds no private key",
            asked=where,
            found=f"{len(digits)} characters",
            hint="64 hexadecimal digits",
        )
    return digits


class JsonRpc:
    """A node's JSON-RPC endpoint: called with a method and its parameters, it gives the result."""

    def __init__(self, url: str, timeout_s: float = 30.0) -> None:
        self._url = url
        self._timeout_s = timeout_s

    def __call__(self, method: str, *params: Any) -> Any:
        """Raises TaskFailed for what the node refuses, and where it does not answer."""
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}).encode()
        request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as reply:  # nosec B310 - http and https alone
                answer = json.loads(reply.read(REPLY_BYTES_MAX))
        except (OSError, ValueError) as error:
            raise TaskFailed(
                f"the node does not answer {method}: {error}",
                asked=self._url,
                hint="is rpc_url right, and reached there?",
            ) from error
        if not isinstance(answer, dict) or "result" not in answer:
            refusal = answer.get("error") if isinstance(answer, dict) else answer
            said = refusal.get("message") if isinstance(refusal, dict) else refusal
            raise TaskFailed(f"the node refuses {method}: {str(said)[:300]}", asked=method, found=str(refusal)[:300])
        return answer["result"]
