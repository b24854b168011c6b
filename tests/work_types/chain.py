"""A chain in memory (py-evm) behind a real HTTP server that speaks its JSON-RPC: a process of its own.

It prints its port, and ends when its standard input does. py-evm raises the recursion limit of its whole process, where
deep JSON would then overflow the C stack instead of being refused: it must not be loaded where other tests run.
"""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Chain:
    """A node: the methods that a wallet needs, over a chain that mines each transaction as it comes."""

    def __init__(self) -> None:
        import eth_tester

        self.tester = eth_tester.EthereumTester(eth_tester.PyEVMBackend())
        self.sent: list[str] = []

    def answer(self, method: str, params: list[Any]) -> Any:
        tester = self.tester
        if method == "eth_chainId":
            return hex(tester.backend.chain.chain_id)
        if method == "eth_getBalance":
            return hex(tester.get_balance(params[0]))
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


def serve() -> None:
    """Serve until standard input ends."""
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
    print(server.server_port, flush=True)
    sys.stdin.read()
    server.shutdown()
    thread.join()
    server.server_close()


if __name__ == "__main__":
    serve()
