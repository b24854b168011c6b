"""Signing in at one host of a cluster: the key opens the other's door, and is gone from both when it is taken back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("joserfc", reason="joserfc is not installed: pip install 'actorgrid[oidc]'")

from actorgrid.client.find import locate
from actorgrid.client.http import AdminHttp
from actorgrid.errors import WrongToken
from tests.identity_provider import CLIENT, TestProvider
from tests.processes import until
from tests.system.cluster_host import ClusterHost

pytestmark = pytest.mark.system


def test_a_key_by_signing_in_opens_all_doors_until_it_is_taken_back(
    make_host: Callable[..., ClusterHost], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    provider = TestProvider()
    try:
        a, b = make_host("a", 1), make_host("b", 1)
        a.settings += [f"oidc.issuer={provider.issuer}", f"oidc.client_id={CLIENT}", 'oidc.groups=["ml=user@lab"]']
        a.found()
        b.join(a, a.token()["token"])
        afar = a.cli_json("key", "create", "--user", "probe", "--role", "viewer", "--tenant", "lab")
        url, authority = afar["url"], afar["ca_fingerprint"]

        def command(*words: str) -> str:
            where = ["--url", url, "--ca-fingerprint", authority]
            line = [sys.executable, "-m", "actorgrid", *words, *where]
            done = subprocess.run(line, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
            return done.stdout

        command("login")
        assert json.loads(command("key", "whoami", "--json"))["user_id"] == "ann@lab"
        (key,) = json.loads((tmp_path / "actorgrid" / "logins.json").read_text()).values()
        at_b = AdminHttp(locate(b.data_dir)[0], key["key"])

        def role_at_b() -> str:
            try:
                return str(at_b.get("/api/me")["role"])
            except WrongToken:
                return "nobody"

        assert until(lambda: role_at_b() == "user", "the key to be known at the other host")
        command("logout")
        until(lambda: role_at_b() == "nobody", "the key to be gone from the other host")
        at_b.close()
    finally:
        provider.close()
