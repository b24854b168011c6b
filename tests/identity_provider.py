"""A small identity provider over real HTTP: discovery, keys, the device flow; tokens as a test wants them."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

from aiohttp import web
from joserfc import jws
from joserfc.jwk import ECKey, RSAKey

CLIENT = "cluster"


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def signed(claims: dict[str, Any], key: Any, head: dict[str, Any]) -> str:
    registry = jws.JWSRegistry(algorithms=[head["alg"]], strict_check_header=False)
    registry.max_header_length = 4096
    return jws.serialize_compact(head, json.dumps(claims), key, registry=registry)


class TestProvider:
    """Serves in a thread of its own. What a test changes here holds for the next request."""

    __test__ = False

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.keys: dict[str, Any] = {"k1": RSAKey.generate_key(2048, {"kid": "k1"})}
        self.asked: list[str] = []
        self.forms: list[dict[str, str]] = []
        self.polls: list[dict[str, Any]] = []
        """What the token endpoint says before it gives the token."""
        self.claims: dict[str, Any] = {}
        """What differs in tokens of the device flow."""
        self.instead: Callable[[web.Request], Any] | None = None
        """Answers in the place of everything; ``None`` of it: as ever."""
        self.document: dict[str, Any] = {}
        self.loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(30)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self._serve())
        self._ready.set()
        self.loop.run_forever()
        self.loop.run_until_complete(self._runner.cleanup())
        self.loop.close()

    async def _serve(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self.issuer = f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}/realm"

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(30)

    def add_key(self, name: str, kind: str = "EC") -> None:
        make = {
            "EC": lambda: ECKey.generate_key("P-256", {"kid": name}),
            "RSA": lambda: RSAKey.generate_key(2048, {"kid": name}),
        }
        self.keys[name] = make[kind]()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        what = request.path.rpartition("/")[2]
        self.asked.append(what)
        if self.instead is not None:
            answer = self.instead(request)
            if asyncio.iscoroutine(answer):
                answer = await answer
            if answer is not None:
                return answer  # type: ignore[no-any-return]
        if what == "openid-configuration":
            told = {"issuer": self.issuer, "jwks_uri": f"{self.issuer}/keys", "token_endpoint": f"{self.issuer}/token"}
            told["device_authorization_endpoint"] = f"{self.issuer}/device"
            return web.json_response({**told, **self.document})
        if what == "keys":
            return web.json_response({"keys": [key.as_dict(private=False) for key in self.keys.values()]})
        form = {name: values[0] for name, values in parse_qs(await request.text()).items()}
        self.forms.append(form)
        if what == "device":
            prompt = {"device_code": "dc", "user_code": "WDJB-MJHT", "verification_uri": f"{self.issuer}/go"}
            return web.json_response({**prompt, "expires_in": 600, "interval": 0.1})
        if what == "token":
            if self.polls:
                return web.json_response(self.polls.pop(0), status=400)
            nonce = next((each["nonce"] for each in reversed(self.forms) if "nonce" in each), None)
            return web.json_response({"id_token": self.token(nonce=nonce, **self.claims), "token_type": "Bearer"})
        return web.json_response({"error": "not_found"}, status=404)

    def plain_claims(self, **more: Any) -> dict[str, Any]:
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": CLIENT,
            "sub": "ann",
            "iat": now,
            "exp": now + 300,
            "groups": ["ml"],
            **more,
        }
        return {name: value for name, value in claims.items() if value is not None}

    def token(self, kid: str = "k1", header: dict[str, Any] | None = None, **more: Any) -> str:
        """A signed token; a claim that is ``None`` is left out."""
        key = self.keys[kid]
        head = {"alg": "RS256" if key.key_type == "RSA" else "ES256", "kid": kid, "typ": "JWT", **(header or {})}
        head = {name: value for name, value in head.items() if value is not None}
        return signed(self.plain_claims(**more), key, head)

    def unsigned(self, **more: Any) -> str:
        parts = ({"alg": "none", "kid": "k1"}, self.plain_claims(**more))
        return ".".join(b64(json.dumps(part).encode()) for part in parts) + "."

    def signed_with_the_public_key(self) -> str:
        """HS256 whose secret is what everybody knows (RFC 8725, 2.1)."""
        parts = ({"alg": "HS256", "kid": "k1"}, self.plain_claims())
        text = ".".join(b64(json.dumps(part).encode()) for part in parts)
        secret = self.keys["k1"].as_pem(private=False)
        return f"{text}.{b64(hmac.new(secret, text.encode(), hashlib.sha256).digest())}"
