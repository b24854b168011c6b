"""Tenants in the ledger: what they are given, hold and held of late; what the guard refuses; what removal does."""

from __future__ import annotations

from typing import Any

import pytest

from actorgrid.access import Role
from actorgrid.actors.ledger import commands
from actorgrid.actors.ledger.api_keys import make_key
from actorgrid.actors.ledger.command import VERSION
from actorgrid.actors.ledger.state import Ledger
from actorgrid.actors.ledger.tables.tenants import HALF_LIFE_S, left_after
from actorgrid.errors import BadRequest, NotFound, QueueFull, QuotaExceeded, WrongState
from tests.hostile.examples import RAFT, host_record
from tests.hostile.examples import job_record as plain_job

AT = 1000.0


class Town:
    """A ledger with one host of four GPUs."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.do(commands.NewTerm(1, at=AT))
        self.do(commands.FoundCluster("c1", "h1", RAFT, "f1", at=AT))
        self.do(commands.ChangeMember("h1", at=AT, ledger_version=VERSION))
        self.do(commands.RegisterHost(host_record("h1", gpus=4), at=AT))

    def do(self, command: Any) -> Any:
        outcome = self.ledger.apply(self.ledger.index + 1, command)
        if outcome.error is not None:
            raise outcome.error
        return outcome.result

    def tenant(self, name: str, *, create: bool = True, weight: int = 1000, at: float = AT, **limits: int) -> Any:
        return self.do(commands.PutTenant(name, weight, {}, limits, create, "me", at=at))

    def submit(self, id: str, user: str, gpus: int = 1) -> Any:
        job = plain_job(id)
        resources = {"gpu_count": gpus, "gpu_milli": 1000, "cpu_milli": 1000}
        return self.do(commands.SubmitJobs([{**job, "user_id": user, "resources": resources}], at=AT))

    def grant(self, id: str, indexes: list[int], at: float = AT) -> Any:
        return self.do(commands.GrantAttempt(id, 1, "h1", 1, indexes, 1, at=at))

    def row(self, name: str) -> Any:
        return next(each for each in self.ledger.quotas.tenants.rows() if each["tenant"] == name)


@pytest.fixture
def town() -> Town:
    return Town()


def test_a_tenant_is_created_set_and_removed_and_names_are_answered(town: Town) -> None:
    assert town.tenant("lab", gpu=2000)["previous"] is None
    with pytest.raises(WrongState, match="already"):
        town.tenant("lab")
    assert town.tenant("lab", create=False, weight=3000)["tenant"]["weight_milli"] == 3000
    with pytest.raises(NotFound, match="no tenant") as refused:
        town.tenant("labs", create=False)
    assert "lab?" in str(refused.value.hint)
    assert town.do(commands.RemoveTenant("lab", at=AT + 1))["tenant"]["removed_at"] == AT + 1
    assert town.do(commands.RemoveTenant("lab", at=AT + 2))["tenant"]["removed_at"] == AT + 1
    assert town.tenant("lab")["tenant"]["removed_at"] is None


@pytest.mark.parametrize(
    ("name", "weight", "amounts"),
    [("a b", 1000, {}), ("*", 1000, {}), ("a", 0, {}), ("a", 1000, {"gpus": 1}), ("a", 1000, {"gpu": -1})],
)
def test_terms_that_are_none_are_refused(town: Town, name: str, weight: int, amounts: dict[str, int]) -> None:
    with pytest.raises(BadRequest):
        town.do(commands.PutTenant(name, weight, {}, amounts, True, at=AT))


def test_the_guard_keeps_a_tenant_to_its_limits_over_all_its_users(town: Town) -> None:
    town.tenant("lab", gpu=2000, jobs_waiting=2)
    town.submit("a", "ann@lab")
    town.submit("b", "bob@lab")
    with pytest.raises(QueueFull, match="waiting"):
        town.submit("c", "ann@lab")
    town.grant("a", [0])
    town.grant("b", [1])
    town.submit("c", "ann@lab")
    with pytest.raises(QuotaExceeded, match="tenant lab"):
        town.grant("c", [2])
    with pytest.raises(QuotaExceeded, match="at once"):
        town.submit("d", "ann@lab", gpus=3)
    town.submit("other", "eve", gpus=2)
    town.grant("other", [2, 3])


def test_devices_count_by_their_model_and_whole_ones_with_all_their_memory(town: Town) -> None:
    model = town.ledger.hosts["h1"]["devices"][0]["model"]
    town.tenant("lab", **{f"gpu:{model}": 1000})
    town.submit("a", "ann@lab")
    town.submit("b", "ann@lab")
    town.grant("a", [0])
    assert town.row("lab")["used"]["gpu_memory"] == town.ledger.hosts["h1"]["devices"][0]["memory_mib"]
    with pytest.raises(QuotaExceeded, match="tenant lab"):
        town.grant("b", [1])


def test_what_was_held_of_late_is_a_mean_that_forgets_half_in_a_week_and_survives_snapshots(town: Town) -> None:
    town.tenant("lab")
    town.submit("a", "ann@lab", gpus=4)
    town.grant("a", [0, 1, 2, 3], at=AT)
    later = AT + HALF_LIFE_S
    town.do(commands.EndAttempt("a.1", list(town.ledger.allocations["a.1"]["token"]), "succeeded", at=later))
    town.tenant("lab", create=False, at=later)
    assert town.row("lab")["of_late"]["gpu"] in (1999, 2000)
    again = Ledger.restore(town.ledger.snapshot())
    assert again.digest() == town.ledger.digest() and again.snapshot() == town.ledger.snapshot()


def test_what_is_left_after_some_time_is_the_same_on_every_machine() -> None:
    for elapsed_s in (0.0, 1.0, 3600.0, 86_400.0, HALF_LIFE_S, 3.5 * HALF_LIFE_S, 200.0 * HALF_LIFE_S):
        assert left_after(elapsed_s) / 2**62 == pytest.approx(0.5 ** (elapsed_s / HALF_LIFE_S), rel=1e-6, abs=1e-12)
    assert left_after(1e12) == 0 and left_after(86_400.0) == 4176913159429877074


def test_a_removed_tenants_keys_open_nothing_and_nothing_of_it_is_taken_or_starts(town: Town) -> None:
    town.tenant("lab")
    made = {
        tenant: make_key(bytes([number] * 5), bytes(30), f"ann@{tenant}", "me", AT, role=Role.USER, tenant=tenant)[1]
        for number, tenant in enumerate(("lab", "biz"))
    }
    for record in made.values():
        town.do(commands.CreateApiKey(record, at=AT))
    town.submit("waits", "ann@lab")
    town.do(commands.RemoveTenant("lab", at=AT + 1))
    revoked = {each["tenant"]: each["revoked_at"] for each in town.ledger.api_keys.values()}
    assert revoked == {"lab": AT + 1, "biz": None}
    for refused in (
        lambda: town.submit("more", "ann@lab"),
        lambda: town.grant("waits", [0]),
        lambda: town.do(commands.CreateApiKey({**made["lab"], "id": "later"}, at=AT)),
    ):
        with pytest.raises(WrongState, match="removed"):
            refused()
    town.tenant("lab")
    town.grant("waits", [0])


def test_without_tenants_the_state_is_what_hosts_of_before_have(town: Town) -> None:
    town.submit("a", "ann@lab")
    town.grant("a", [0])
    assert "charge" not in town.ledger.allocations["a.1"]
    assert not {"tenant", "tenant_use"} & town.ledger.digest().keys()
