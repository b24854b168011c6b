"""What work holds and uses of devices, counted from sample to sample."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorgrid.actors.ledger.usage_checks import is_usage
from actorgrid.actors.work.messages import DeviceUse
from actorgrid.actors.work.usage_meter import GAP_S, NOT_SAMPLED, NOT_TOLD, HeldDevice, HeldWork, UsageMeter

GPU = HeldDevice("GPU-0", "H100")


def held(work_id: str = "a.1", share_milli: int = 1000, *devices: HeldDevice, **fields: Any) -> HeldWork:
    return HeldWork(work_id, "attempt", "a", "ann", share_milli, 1000, devices or (GPU,), 1e9, **fields)


def read(
    mib: int | None = 1000, counter_j: float | None = None, watts: float | None = None, **fields: Any
) -> DeviceUse:
    counter = None if counter_j is None else round(counter_j * 1000)
    given = {"lists_processes": False, "no_memory": "no memory told", "no_energy": "no energy told", **fields}
    return DeviceUse(
        fields.pop("uuid", "GPU-0"), mib, counter, watts, **{k: v for k, v in given.items() if k != "uuid"}
    )


def test_gpu_seconds_are_time_times_devices_times_share_and_need_no_sample() -> None:
    meter = UsageMeter()
    meter.begin(held("a.1", 250, GPU, HeldDevice("GPU-1", "A100")), 100.0)
    usage = meter.end("a.1", 108.0)
    assert usage is not None
    record = usage.to_record()
    assert (record["held_s"], record["gpu_s"]) == (8.0, 4.0)
    assert record["models"] == {"H100": 2.0, "A100": 2.0}
    assert (record["memory_mib_s"], record["energy_j"], record["memory_high_mib"]) == (None, None, None)
    assert record["unsupported"] == {"memory": NOT_SAMPLED, "energy": NOT_SAMPLED}
    assert is_usage(record) and is_usage(json.loads(json.dumps(record)))
    assert meter.end("a.1", 109.0) is None and not meter.open


def test_memory_counts_since_the_sample_before_and_goes_on_behind_the_last() -> None:
    meter = UsageMeter()
    meter.begin(held(), 0.0)
    meter.sample([read(1000)], {}, 4.0)
    meter.sample([read(3000)], {}, 9.0)
    record = meter.end("a.1", 11.0).to_record()  # type: ignore[union-attr]
    assert record["memory_mib_s"] == 4 * 1000 + 5 * 3000 + 2 * 3000
    assert record["memory_high_mib"] == 3000


def test_of_a_shared_device_work_is_charged_with_what_its_own_processes_have() -> None:
    meter = UsageMeter()
    meter.begin(held("a.1", 500), 0.0)
    meter.begin(held("b.1", 500), 0.0)
    meter.sample([read(9000, lists_processes=True)], {"a.1": {"GPU-0": 700}}, 10.0)
    one, other = meter.end("a.1", 10.0), meter.end("b.1", 10.0)
    assert one is not None and one.to_record()["memory_mib_s"] == 7000
    assert other is not None and other.to_record()["memory_mib_s"] == 0, "it is known that it has none"


def test_of_a_shared_device_whose_processes_are_not_told_memory_is_unknown_and_not_0() -> None:
    meter = UsageMeter()
    meter.begin(held("a.1", 500), 0.0)
    meter.sample([read(9000)], {}, 10.0)
    record = meter.end("a.1", 10.0).to_record()  # type: ignore[union-attr]
    assert record["memory_mib_s"] is None and record["unsupported"]["memory"] == NOT_TOLD


def test_energy_is_the_share_of_what_the_counter_says_for_the_time_it_was_held() -> None:
    meter = UsageMeter()
    meter.sample([read(counter_j=1000)], {}, 0.0)
    meter.begin(held("a.1", 500), 5.0)  # half of the first interval
    meter.sample([read(counter_j=2000)], {}, 10.0)
    meter.sample([read(counter_j=4000)], {}, 20.0)
    record = meter.end("a.1", 20.0).to_record()  # type: ignore[union-attr]
    assert record["energy_j"] == 0.5 * (1000 / 2) + 0.5 * 2000
    assert record["energy_estimated_s"] == 0.0


def test_without_a_counter_power_stands_in_and_it_is_told_for_how_long() -> None:
    meter = UsageMeter()
    meter.begin(held(), 0.0)
    meter.sample([read(watts=300.0)], {}, 10.0)
    record = meter.end("a.1", 12.0).to_record()  # type: ignore[union-attr]
    assert (record["energy_j"], record["energy_estimated_s"]) == (3600.0, 12.0)


def test_where_the_driver_tells_neither_there_is_a_reason_and_no_number() -> None:
    meter = UsageMeter()
    meter.begin(held(), 0.0)
    meter.sample([read()], {}, 10.0)
    record = meter.end("a.1", 12.0).to_record()  # type: ignore[union-attr]
    assert record["energy_j"] is None and record["unsupported"]["energy"] == "no energy told"


def test_a_counter_that_starts_again_with_its_driver_takes_nothing_away() -> None:
    meter = UsageMeter()
    meter.sample([read(counter_j=9000)], {}, 0.0)
    meter.begin(held(), 0.0)
    meter.sample([read(counter_j=9500)], {}, 10.0)
    meter.sample([read(counter_j=3)], {}, 20.0)
    meter.sample([read(counter_j=103)], {}, 30.0)
    assert meter.end("a.1", 30.0).to_record()["energy_j"] == 600.0  # type: ignore[union-attr]


def test_while_nobody_looked_memory_is_not_counted_and_the_counter_of_energy_is() -> None:
    meter = UsageMeter()
    meter.sample([read(counter_j=0)], {}, 0.0)
    meter.begin(held(), 0.0)
    meter.sample([read(1000, counter_j=100)], {}, 10.0)
    gone_s = GAP_S + 40
    meter.sample([read(1000, counter_j=1100)], {}, 10.0 + gone_s)
    record = meter.end("a.1", 10.0 + gone_s).to_record()  # type: ignore[union-attr]
    assert (record["memory_mib_s"], record["unsampled_s"], record["energy_j"]) == (10_000, gone_s, 1100)


def test_simulated_devices_are_marked() -> None:
    meter = UsageMeter()
    meter.begin(held("a.1", 1000, HeldDevice("GPU-0", "H100", simulated=True)), 0.0)
    assert meter.end("a.1", 1.0).to_record()["simulated"] is True  # type: ignore[union-attr]


def test_an_agent_that_comes_after_goes_on_where_the_one_before_was() -> None:
    meter = UsageMeter()
    meter.sample([read(counter_j=0)], {}, 0.0)
    meter.begin(held(labels={"team": "x"}), 0.0)
    meter.sample([read(1000, counter_j=100)], {}, 10.0)
    after = UsageMeter.from_plain(json.loads(json.dumps(meter.to_plain())))
    after.begin(held(), 99.0)  # the ledger shows it, too: it goes on
    after.sample([read(2000, counter_j=300)], {}, 20.0)
    usage = after.end("a.1", 20.0)
    assert usage is not None and usage.work.labels == {"team": "x"}
    record = usage.to_record()
    assert (record["gpu_s"], record["memory_mib_s"], record["energy_j"]) == (20.0, 30_000, 300)


@pytest.mark.parametrize("broken", [{}, {"open": [{}], "last": {}}, {"open": [], "last": {"a": 3}}, {"open": 3}])
def test_what_is_no_word_of_an_agent_before_is_told_from_one(broken: dict[str, Any]) -> None:
    with pytest.raises((TypeError, KeyError, ValueError)):
        UsageMeter.from_plain(broken)


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(0, 900), st.integers(0, 20)), min_size=1, max_size=8))
def test_holders_together_are_never_charged_with_more_than_was_drawn(plan: list[tuple[int, int, int]]) -> None:
    """Each step: a share, joules drawn, seconds; holders come one after the other while there is room for them."""
    meter = UsageMeter()
    meter.sample([read(counter_j=0)], {}, 0.0)
    now, drawn, given_milli = 0.0, 0, 0
    for number, (share, joules, seconds) in enumerate(plan):
        if given_milli + share <= 1000:
            meter.begin(held(f"w{number}.1", share), now)
            given_milli += share
        now, drawn = now + seconds, drawn + (joules if seconds else 0)
        meter.sample([read(counter_j=drawn)], {}, now)
    charged = [meter.end(work_id, now) for work_id in list(meter.open)]
    assert sum(one.to_record()["energy_j"] or 0.0 for one in charged if one is not None) <= drawn + 0.1 * len(charged)
