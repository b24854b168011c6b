"""``actorgrid monitoring`` of a real host: its files name figures that it tells, and a real Prometheus takes them."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest
import yaml

from tests.processes import until
from tests.system.cluster_host import ClusterHost, free_base_port

TOLD_WITH_OTHERS = {"actorgrid_clock_offset_seconds"}
"""Figures that a host alone does not know; tests/cluster/test_faults_server.py has them told."""


@pytest.fixture
def written(make_host: Callable[..., ClusterHost], tmp_path: Path) -> Iterator[tuple[ClusterHost, Path]]:
    """A host and the folder with its files, the key among them."""
    host = make_host("a", 2).found()
    folder = tmp_path / "monitoring"
    told = host.cli_json("monitoring", str(folder))
    assert sorted(Path(path).name for path in told["files"]) == sorted(path.name for path in folder.iterdir())
    (folder / "actorgrid-key").write_text(host.cli("key", "create", "--user", "prometheus", "--ttl", "1h").stdout)
    yield host, folder


def metrics(folder: Path) -> str:
    """What the first target says, over TLS, believed and asked as the configuration says."""
    (job,) = yaml.safe_load((folder / "prometheus.yml").read_text())["scrape_configs"]
    context = ssl.create_default_context(cafile=str(folder / job["tls_config"]["ca_file"]))
    connection = http.client.HTTPSConnection(job["static_configs"][0]["targets"][0], context=context, timeout=60)
    key = (folder / job["authorization"]["credentials_file"]).read_text().strip()
    connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {key}"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    assert answer.status == 200, text
    return text


def named(folder: Path) -> set[str]:
    """The figures that alerts and dashboards ask for."""
    texts = [(folder / name).read_text() for name in ("actorgrid-alerts.yml", "actorgrid-cluster.json")]
    texts.append((folder / "actorgrid-gpus.json").read_text())
    return {name.removesuffix("_bucket") for text in texts for name in re.findall(r"\bactorgrid_[a-z0-9_]+", text)}


def test_every_figure_that_the_files_name_is_told_over_tls_to_whoever_has_the_key(
    written: tuple[ClusterHost, Path],
) -> None:
    host, folder = written
    told = {line.split()[2] for line in metrics(folder).splitlines() if line.startswith("# TYPE ")}
    assert len(named(folder)) > 30
    assert named(folder) - told <= TOLD_WITH_OTHERS
    again = host.cli("monitoring", str(folder), check=False)
    assert again.returncode == 2
    assert "--force" in again.stderr
    assert host.cli("monitoring", str(folder), "--force").returncode == 0


def test_a_real_prometheus_takes_the_files_and_finds_the_host_up(written: tuple[ClusterHost, Path]) -> None:
    _, folder = written
    if shutil.which("prometheus") is None or shutil.which("promtool") is None:
        pytest.skip("prometheus is not installed (the test above reads the same over the same TLS)")
    checked = subprocess.run(
        ["promtool", "check", "config", "prometheus.yml"], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    address = f"127.0.0.1:{free_base_port()}"
    words = ["--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address={address}"]
    with subprocess.Popen(["prometheus", *words], cwd=folder, stderr=subprocess.DEVNULL) as prometheus:
        try:
            until(lambda: asked(address, "up") == ["1"], what="the host to be up", within_s=60)
            assert asked(address, "max(actorgrid_cluster_gpus_present)") == ["2"]
            assert asked(address, 'ALERTS{alertstate="firing"}') == []
        finally:
            prometheus.terminate()


def asked(address: str, expression: str) -> list[str]:
    """The values of an expression now; nothing where Prometheus is not there yet."""
    try:
        with urlopen(f"http://{address}/api/v1/query?query={quote(expression)}", timeout=10) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    except OSError:
        return []
    return [str(one["value"][1]) for one in found]
