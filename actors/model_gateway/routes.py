"""The paths that lead to replicas, and no others.

What else a server of models has open (vLLM's ``/invocations`` asks for no key) is not reached from here.
"""

from __future__ import annotations

from typing import NamedTuple

from .refusals import RequestRefused


class ModelPath(NamedTuple):
    """What a path is for."""

    takes_model: bool = True
    has_stream_options: bool = False
    """Whether usage at the end of a stream is asked for by ``stream_options``."""
    is_embedding: bool = False
    has_tokens: bool = True
    """Whether what is sent and answered is counted in tokens where no usage is told."""
    has_named_events: bool = False
    """Whether clients know the events of a stream, errors among them, by their names."""


_POSTED = {
    "/v1/chat/completions": ModelPath(has_stream_options=True),
    "/v1/completions": ModelPath(has_stream_options=True),
    "/v1/embeddings": ModelPath(is_embedding=True),
    "/v1/responses": ModelPath(has_named_events=True),
    "/v1/rerank": ModelPath(),
    "/v1/score": ModelPath(),
    "/v1/moderations": ModelPath(),
    "/v1/audio/speech": ModelPath(has_tokens=False),
    "/v1/audio/transcriptions": ModelPath(has_tokens=False),
    "/v1/audio/translations": ModelPath(has_tokens=False),
    "/v1/images/generations": ModelPath(has_tokens=False),
    "/v1/images/edits": ModelPath(has_tokens=False),
    "/v1/images/variations": ModelPath(has_tokens=False),
}
FORMS = frozenset(path for path in _POSTED if "/audio/" in path or "/images/" in path)
_MODELS = ModelPath(takes_model=False)
_OWN = frozenset(("/health", "/metrics"))


def is_own(path: str) -> bool:
    """Whether the gateway itself answers, without a key."""
    return path in _OWN


def path_of(method: bytes, path: str) -> ModelPath:
    """What *path* is for. Raises RequestRefused."""
    if path == "/v1/models" or path.startswith("/v1/models/"):
        expected, found = b"GET", _MODELS
    elif path in _POSTED:
        expected, found = b"POST", _POSTED[path]
    else:
        raise RequestRefused(404, f"there is no {path[:200]} here", "unknown_url")
    if method != expected:
        raise RequestRefused(405, f"{path} takes {expected.decode()}", "method_not_allowed")
    return found
