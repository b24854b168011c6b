"""LitServe with a noop, for ``serving_peers``: ``python peer_litserve.py PORT BATCH``."""

import sys

import litserve


class Noop(litserve.LitAPI):
    def setup(self, device):
        pass

    def decode_request(self, request):
        return request["input"]

    def predict(self, value):
        return value

    def encode_response(self, value):
        return {"output": value}


if __name__ == "__main__":
    port, batch = int(sys.argv[1]), int(sys.argv[2])
    api = Noop(max_batch_size=batch, batch_timeout=0.002 if batch > 1 else 0.0)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=port, num_api_servers=1, generate_client_file=False, log_level="error")
