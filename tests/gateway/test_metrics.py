"""``/metrics`` of a running gateway."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from actorgrid.actors.host.children import CHILDREN, OF_A_CLUSTER


def scrape(town: Any, **more: Any) -> dict[str, list[Any]]:
    reply = town.http("GET", "/metrics", **more)
    assert reply.status == 200, reply.body
    assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    return {family.name: family.samples for family in text_string_to_metric_families(reply.body.decode())}


def test_every_server_is_asked_without_a_token(town: Any) -> None:
    found = scrape(town, token=None)
    up = {sample.labels["server"]: sample.value for sample in found["actorgrid_up"]}
    assert up == dict.fromkeys(("host", *(child.id for child in OF_A_CLUSTER)), 1.0)
    assert {sample.labels["server"] for sample in found["actorgrid_process_resident_memory_bytes"]} == {
        "consensus",
        "gateway",
    }
    assert found["actorgrid_jobs_queued"][0].value == 2
    assert {sample.labels["state"]: sample.value for sample in found["actorgrid_jobs"]} == {"queued": 2, "running": 1}


def test_a_host_that_is_alone_has_no_servers_of_a_cluster_to_ask(real_town: Any) -> None:
    up = {sample.labels["server"] for sample in scrape(real_town)["actorgrid_up"]}
    assert up == {"host", *(child.id for child in CHILDREN)}


def test_a_server_that_does_not_answer_is_down_and_the_rest_is_there(town: Any) -> None:
    town.servers["gpu_coordinator"].mute = True
    town.node.remove("load_balancer")
    found = scrape(town)
    up = {sample.labels["server"]: sample.value for sample in found["actorgrid_up"]}
    assert (up["gpu_coordinator"], up["load_balancer"], up["consensus"]) == (0.0, 0.0, 1.0)
    assert not [name for name in found if name.startswith("DCGM")]


def test_simulated_devices_have_no_dcgm_names(town: Any) -> None:
    found = scrape(town)
    assert found["actorgrid_gpu_allocated_ratio"][0].labels["model"] == "H100-80GB"
    assert not [name for name in found if name.startswith("DCGM")]


def test_requests_show_by_route_not_by_path(town: Any) -> None:
    town.add_job("a")
    for path in ("/api/jobs/a", "/api/jobs/a", "/api/jobs/none", "/etc/passwd"):
        town.http("GET", path)
    town.http("GET", "/api/gpus", token=None)
    found = scrape(town)
    counts = {
        (sample.labels["method"], sample.labels["route"], sample.labels["status"]): sample.value
        for sample in found["actorgrid_http_requests"]
        if sample.name.endswith("_total")
    }
    assert counts[("GET", "/api/jobs/{job_id}", "200")] == 2
    assert counts[("GET", "/api/jobs/{job_id}", "404")] == 1
    assert counts[("other", "unmatched", "404")] == 1
    assert not [key for key in counts if "passwd" in key[1]]
    refused = [s for s in found["actorgrid_http_refused_tokens"] if s.name.endswith("_total")]
    assert refused[0].value == 1


def test_the_token_may_be_asked_for(town: Any) -> None:
    town.host.settings.set_live("security.metrics_need_token", True)
    assert town.http("GET", "/metrics", token=None).error["code"] == "WrongToken"
    assert "actorgrid_up" in scrape(town)
