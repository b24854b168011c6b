"""What Prometheus is told of a cluster: its hosts, how to believe them, and with which key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

RULES_FILE = "actorgrid-alerts.yml"
CA_FILE, KEY_FILE = "actorgrid-ca.pem", "actorgrid-key"
SCRAPE_INTERVAL = "15s"


def scrape_config(urls: Sequence[str]) -> dict[str, Any]:
    """A whole ``prometheus.yml`` for the hosts at *urls*, all of one scheme (Prometheus, Configuration).

    Behind https, hosts are believed by the authority in ``CA_FILE`` alone; the key is read from ``KEY_FILE``.
    """
    split = [urlsplit(url) for url in urls]
    scheme = split[0].scheme if split else "http"
    job: dict[str, Any] = {
        "job_name": "actorgrid",
        "scheme": scheme,
        "authorization": {"credentials_file": KEY_FILE},
        "static_configs": [{"targets": [each.netloc for each in split]}],
    }
    if scheme == "https":
        job["tls_config"] = {"ca_file": CA_FILE, "min_version": "TLS13"}
    return {
        "global": {"scrape_interval": SCRAPE_INTERVAL, "evaluation_interval": SCRAPE_INTERVAL},
        "rule_files": [RULES_FILE],
        "scrape_configs": [job],
    }
