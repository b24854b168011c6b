"""The least isolation that work asks for: which hosts enforce it, who is told of those that do not."""

from __future__ import annotations

from typing import Any, cast

import pytest
from pydantic import ValidationError

from actorgrid.actors.cluster.explain.why import JobContext, explain_job
from actorgrid.actors.gpu.enforcement import (
    enforced_of_job,
    enforced_of_lease,
    enough_devices,
    host_lacks,
    isolation_counts,
)
from actorgrid.actors.gpu.feasibility import check_feasible
from actorgrid.actors.ledger.isolation_records import KeptApartRecord, is_kept_apart
from actorgrid.actors.ledger.kept_apart import level_of, level_of_worker, wanted_level
from actorgrid.actors.ledger.record_types import HostRecord, JobRecord
from actorgrid.demand import Demand
from actorgrid.errors import BadRequest, IsolationNotGiven
from actorgrid.isolation_words import checked_min_isolation, is_min_isolation, lacking
from actorgrid.models import TaskRequest

BASIC = {"files": "cooperative", "processes": "none", "memory": "kernel", "devices": "cooperative"}
FULL = {**BASIC, "files": "kernel", "processes": "kernel"}


def host(name: str, kept: dict[str, Any] | None, **more: Any) -> HostRecord:
    fields = {"host_id": name, "hostname": name, "cpu_milli": 8000, "memory_mib": 8000, "devices": [], "incarnation": 1}
    return cast("HostRecord", fields | ({} if kept is None else {"kept_apart": kept}) | more)


def kept(setting: str = "auto", *, full: bool = True) -> dict[str, Any]:
    return {"setting": setting, "levels": {"off": {}, "basic": BASIC} | ({"full": FULL} if full else {})}


def job(asked: str = "", user: str = "ann", **fields: Any) -> JobRecord:
    resources = {"cpu_milli": 1000, "memory_mib": 100} | ({"min_isolation": asked} if asked else {})
    return cast("JobRecord", {"job_id": "j", "user_id": user, "resources": resources, **fields})


STRONG, WEAK, SILENT = host("strong", kept()), host("weak", kept(full=False)), host("silent", None)


def test_one_word_is_of_files_and_processes_and_there_is_one_spelling() -> None:
    assert checked_min_isolation(" kernel ") == "files=kernel,processes=kernel"
    assert (
        checked_min_isolation("pids=kernel, files = cooperative,kernel") == "files=kernel,processes=kernel,pids=kernel"
    )
    assert checked_min_isolation("none") == checked_min_isolation("") == ""
    for nonsense in ("full", "files", "files=strong", "disks=kernel", "kernel=files", "=", "files==kernel"):
        with pytest.raises(ValueError, match="min_isolation"):
            checked_min_isolation(nonsense)
    assert is_min_isolation("files=kernel")
    assert not any(map(is_min_isolation, ["", "kernel", None, 1, "files=kernel,files=kernel", "x" * 1000]))
    assert lacking("files=kernel,cpu=kernel", {"files": "hardware"}) == ["cpu: none, asked kernel"]


def test_a_host_that_enforces_less_is_no_place_for_it() -> None:
    demand = Demand.of_request(TaskRequest(command=["x"], min_isolation="kernel"))
    assert Demand.of(demand.to_record()) == demand and demand != Demand(cpu_milli=1000)
    assert host_lacks(demand, STRONG) == []
    assert host_lacks(demand, WEAK) == ["files: cooperative, asked kernel", "processes: none, asked kernel"]
    assert host_lacks(demand, SILENT) != [] and host_lacks(Demand(), SILENT) == []
    check_feasible(demand, [WEAK, STRONG])
    check_feasible(demand, [WEAK, SILENT])  # it may still say that it does
    with pytest.raises(IsolationNotGiven, match=r"weak: files: cooperative, asked kernel"):
        check_feasible(demand, [WEAK])


def test_nothing_is_promised_of_what_is_not_asked_for() -> None:
    for asked in ({"min_isolation": "memory=kernel"}, {"min_isolation": "gpu_memory=driver", "gpus": 0.5}):
        with pytest.raises(BadRequest, match="nothing limits"):
            Demand.of_request(TaskRequest(command=["x"], **asked))
    with pytest.raises(ValidationError, match="neither a word"):
        TaskRequest(command=["x"], min_isolation="much")


def test_memory_of_gpus_goes_by_the_device() -> None:
    mig = {"uuid": "m", "index": 0, "memory_mib": 9, "source": "probed", "parent": "g", "share_milli": 1000}
    whole = {"uuid": "g", "index": 1, "memory_mib": 9, "source": "probed"}
    demand = Demand(gpu_count=1, min_isolation="gpu_memory=hardware")
    assert enough_devices(demand, cast("Any", [mig, whole])) == [mig]


def test_a_job_has_the_level_that_its_tenant_and_its_wish_say() -> None:
    both, weak = cast("Any", kept()), cast("Any", kept(full=False))
    assert wanted_level(both, job()) == "basic"
    assert level_of(both, job(user="ann@lab"), mps=False) == "full"
    assert level_of(both, job("files=kernel"), mps=False) == "full"
    assert level_of(both, job("memory=kernel"), mps=False) == "basic"
    assert level_of(weak, job(user="ann@lab"), mps=False) == "basic"
    steps = {"step_of": {"graph_id": "g"}, "outputs": ["out"]}
    assert level_of(both, job(user="ann@lab", **steps), mps=False) == "full"
    assert level_of(both, job("files=kernel", **steps), mps=False) == "full"
    assert level_of(both, job(**steps), mps=False) == "basic"
    assert level_of(both, job("files=kernel", container={}), mps=False) == "off", "no runtime is there for it"
    has_podman = cast("Any", {**kept(), "containers": ["podman"]})
    assert is_kept_apart(has_podman) and not is_kept_apart({**kept(), "containers": ["lxc"]})
    assert level_of(has_podman, job("files=kernel", container={}), mps=False) == "full"
    assert level_of(has_podman, job(user="ann@lab", container={"runtime": "podman"}), mps=False) == "full"
    assert level_of(has_podman, job(container={}), mps=False) == "off", "whose work it is has not changed"
    for no in ({"container": {"runtime": "apptainer"}}, {"container": {}, "environment": {"python": ""}}):
        assert level_of(has_podman, job("files=kernel", **no), mps=False) == "off"
    assert level_of(cast("Any", kept("off")), job("files=kernel"), mps=False) == "off"
    assert level_of(both, job("files=kernel"), mps=True) == "full", "its daemon has its uid"
    without_uids = {"setting": "auto", "levels": {"off": {}, "basic": {**BASIC, "files": "none"}, "full": FULL}}
    assert level_of(cast("Any", without_uids), job("files=kernel"), mps=False) == "full"
    assert level_of(cast("Any", without_uids), job("files=kernel"), mps=True) == "basic", "it makes no sockets"
    assert wanted_level(both, job("gpu_memory=driver")) == "basic", "no namespace holds that"
    assert wanted_level(both, job("files=kernel,gpu_memory=driver")) == "full"


def test_a_sessions_worker_has_the_level_of_its_user_where_there_are_uids() -> None:
    root, weak = kept(), kept(full=False)
    shut_in = {"setting": "auto", "levels": {"off": {}, "basic": {**BASIC, "files": "none"}, "full": FULL}}
    ann = {"user_id": "ann@lab"}
    assert level_of_worker(cast("Any", root), **ann) == "full"
    assert level_of_worker(cast("Any", root), "ann") == "basic"
    assert level_of_worker(cast("Any", weak), **ann) == level_of_worker(cast("Any", shut_in), **ann) == "basic"
    assert level_of_worker(cast("Any", kept("full")), "ann") == "full"
    assert level_of_worker(cast("Any", kept("off")), **ann) == "off"
    lease = cast("Any", {"user_id": "ann@lab", "gpu_milli": 0, "gpu_memory_mib": 0, "gpu_uuids": []})
    assert enforced_of_lease(host("strong", root), lease)[0]["files"] == "kernel"
    assert enforced_of_lease(host("weak", weak), lease)[0]["files"] == "cooperative"


def test_a_grant_states_who_enforces_what_and_a_limit_that_is_not_asked_for_is_none() -> None:
    attempts = [{"host": "strong", "gpu_uuids": []}]
    placed = job("files=kernel", state="running", attempts=attempts)
    assert enforced_of_job(placed, {"strong": STRONG}) == FULL
    placed["resources"]["memory_mib"] = 0
    assert enforced_of_job(placed, {"strong": STRONG}) == {**FULL, "memory": "none"}
    assert enforced_of_job(placed, {"strong": host("strong", cast("Any", {"levels": 3}))}) == {}
    assert isolation_counts([STRONG, WEAK, SILENT])["files"] == {"kernel": 1, "cooperative": 1}


def test_why_names_the_hosts_and_what_they_lack() -> None:
    fields: dict[str, Any] = {
        "state": "queued",
        "attempts": [],
        "submitted_at": 0.0,
        "not_before": 0.0,
        "kind": "command",
    }
    waiting = job("files=kernel", **fields)
    context = JobContext(now=1.0, fit=cast("Any", {"total_nodes": 1, "position": 1}), hosts={"weak": WEAK})
    told = explain_job(waiting, context)
    assert "weak enforces less than it asks for (files: cooperative, asked kernel)" in told["headline"]
    mixed = explain_job(waiting, JobContext(now=1.0, fit=context.fit, hosts={"weak": WEAK, "strong": STRONG}))
    assert any("weak enforces less" in reason for reason in mixed["reasons"])


def test_what_a_host_says_is_looked_at_before_it_is_kept() -> None:
    assert is_kept_apart(kept())
    for nonsense in (None, {}, {"setting": "auto"}, {**kept(), "more": 1}, {"setting": "auto", "levels": {}}):
        assert not is_kept_apart(nonsense)
    assert not is_kept_apart({"setting": ["auto"], "levels": {"basic": {}}})
    assert not is_kept_apart({"setting": "auto", "levels": {"basic": {"files": ["kernel"]}}})


@pytest.mark.parametrize("more", [{"checkpoint": {"path": "ckpt"}}, {"environment": "ab" * 32}, {"outputs": ["out"]}])
def test_work_whose_files_the_agent_has_to_do_with_is_kept_apart_as_other_work(more: dict[str, Any]) -> None:
    apart = cast("KeptApartRecord", kept())
    assert level_of(apart, job(user="ann@lab", **more), mps=False) == "full"
    assert level_of(apart, job("files=kernel", **more), mps=False) == "full"
    assert level_of(apart, job(**more), mps=False) == "basic"
