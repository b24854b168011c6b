"""OpenAI's client for node against the gateway: the rows of what it needs that Python's takes anyway.

It runs where node has the package ``openai`` (``npm install -g openai``, or ``NODE_PATH``).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any

import pytest

from .running import RunningGateway
from .scripted_replica import ERRORS

CLIENT = """
const OpenAI = require("openai");
const client = new OpenAI({ apiKey: "k", baseURL: process.argv[1], maxRetries: 0 });
const messages = [{ role: "user", content: "hi" }];
async function stream(name, more = {}) {
  let text = "", usage = null, error = null;
  try {
    const found = await client.chat.completions.create(
      { model: "m", messages, stream: true, ...more }, { headers: { "x-test": name } });
    for await (const chunk of found) {
      if (chunk.choices.length) text += chunk.choices[0].delta.content || "";
      if (chunk.usage) usage = chunk.usage.total_tokens;
    }
  } catch (caught) { error = [caught.constructor.name, caught.message]; }
  return { text, usage, error };
}
async function refused(work) {
  try { await work(); return null; }
  catch (caught) { return [caught.constructor.name, caught.status, caught.code, !!caught.requestID]; }
}
(async () => {
  const out = {};
  out.models = (await client.models.list()).data.map((each) => each.id);
  out.chat = (await client.chat.completions.create({ model: "m", messages })).choices[0].message.content;
  const plans = ["", "crlf", "no-space", "comment", "two-lines", "no-done", "bytes", "cut", "cut-in-event",
    ...process.argv.slice(2)];
  for (const name of plans)
    out["stream " + name] = await stream(name);
  out.asked = await stream("", { stream_options: { include_usage: true } });
  for (const name of ["", "base64"])
    out["embedding " + name] = Array.from((await client.embeddings.create(
      { model: "m", input: "x" }, { headers: { "x-test": name } })).data[0].embedding);
  out.floats = (await client.embeddings.create({ model: "m", input: "x", encoding_format: "float" })).data[0].embedding;
  out.events = [];
  for await (const event of await client.responses.create({ model: "m", input: "x", stream: true }))
    out.events.push(event.type);
  out.gone = await refused(() => client.chat.completions.create({ model: "gone", messages }));
  out.statuses = [];
  for (const status of [400, 401, 403, 409, 422, 429, 500, 503])
    out.statuses.push(await refused(() => client.chat.completions.create(
      { model: "m", messages }, { headers: { "x-test": `status:${status}:no` } })));
  out.completion = (await client.completions.create({ model: "m", prompt: "x" })).choices[0].text;
  const answer = await client.chat.completions.create({ model: "m", messages }).withResponse();
  out.request_id = !!answer.request_id;
  out.text = await refused(() => client.chat.completions.create(
    { model: "m", messages }, { headers: { "x-test": "status:429:slow down" } }));
  console.log(JSON.stringify(out));
})();
"""


@pytest.fixture(scope="module")
def node() -> list[str]:
    program = shutil.which("node")
    if program is None:
        pytest.skip("there is no node here")
    known = subprocess.run([program, "-e", 'require.resolve("openai")'], capture_output=True, check=False)
    if known.returncode != 0:
        pytest.skip("node has no package openai (npm install -g openai, or NODE_PATH)")
    return [program, "-e", CLIENT]


def test_what_nodes_client_needs_it_gets(node: list[str], gateway: RunningGateway) -> None:
    done = subprocess.run(
        [*node, gateway.url, *ERRORS], capture_output=True, text=True, timeout=120, check=False, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    out: dict[str, Any] = json.loads(done.stdout)
    assert out["models"] == ["m"] and out["chat"] == "ab"
    for name in ("", "crlf", "no-space", "comment", "two-lines", "no-done", "bytes"):
        assert out[f"stream {name}"] == {"text": "ab", "usage": None, "error": None}, name
    for name in ERRORS:
        assert out[f"stream {name}"] == {"text": "a", "usage": None, "error": ["APIError", "engine died"]}, name
    for name in ("cut", "cut-in-event"):
        told = out[f"stream {name}"]
        assert told["text"] == "a" and told["error"][0] == "APIError" and "closed" in told["error"][1], name
    assert out["asked"] == {"text": "ab", "usage": 11, "error": None}
    assert out["embedding "] == out["embedding base64"] == out["floats"] == [1, 2, 3]
    assert len(out["events"]) == 9 and out["events"][-1] == "response.completed"
    assert out["gone"] == ["NotFoundError", 404, "model_not_found", True]
    names = [
        "BadRequestError", "AuthenticationError", "PermissionDeniedError", "ConflictError", "UnprocessableEntityError",
        "RateLimitError", "InternalServerError", "InternalServerError",
    ]  # fmt: skip
    assert [row[0] for row in out["statuses"]] == names
    assert all(row[3] for row in out["statuses"]) and out["request_id"], "an id to ask about"
    assert out["completion"]
    assert out["text"][:2] == ["RateLimitError", 429]
