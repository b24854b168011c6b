"""Which path is used: by what was measured, without going to and fro, and never long by one that fails."""

from __future__ import annotations

from actorgrid.transports.path_choice import (
    LEFT_S,
    LEFT_S_MAX,
    TRIES,
    TRY_AGAIN_S,
    TRY_BYTES_MAX,
    Burst,
    BurstMeter,
    PathChoice,
)
from actorgrid.transports.paths import PathKind

MIB = 2**20
TLS, STREAMS, RDMA = PathKind.TLS, PathKind.TLS_STREAMS, PathKind.RDMA


def transfers(choice: PathChoice, rates: dict[PathKind, float], count: int, now_s: float = 0.0) -> list[PathKind]:
    """What *count* transfers of 16 MiB go over, where each path has that many MiB a second."""
    went = []
    for _ in range(count):
        kind = choice.choose(list(rates), 16 * MIB, now_s)
        choice.measured(kind, 16 * MIB, 16 / rates[kind])
        went.append(kind)
    return went


def test_before_anything_is_measured_the_order_says() -> None:
    assert PathChoice().choose([TLS, STREAMS, RDMA], 16 * MIB, 0.0) == RDMA
    assert PathChoice().choose([TLS, STREAMS], 16 * MIB, 0.0) == STREAMS
    assert PathChoice().choose([TLS], 16 * MIB, 0.0) == TLS


def test_the_faster_one_is_found_by_few_real_transfers_and_kept() -> None:
    choice = PathChoice()
    went = transfers(choice, {RDMA: 100, STREAMS: 400}, 20)
    assert went[0] == RDMA and went.count(RDMA) <= 1 + TRIES and set(went[5:]) == {STREAMS}
    choice = PathChoice()
    went = transfers(choice, {RDMA: 400, STREAMS: 100}, 20)
    assert went.count(STREAMS) == TRIES and set(went[4:]) == {RDMA}


def test_a_little_faster_is_not_faster() -> None:
    choice = PathChoice()
    transfers(choice, {STREAMS: 100, TLS: 110}, 10)
    assert choice.used == STREAMS
    for rate in (90, 120, 80, 130) * 5:
        choice.measured(STREAMS, 16 * MIB, 16 / rate)
        assert choice.best([STREAMS, TLS], 0.0) == STREAMS


def test_tries_are_bounded_in_number_size_and_time() -> None:
    choice = PathChoice()
    choice.measured(STREAMS, 16 * MIB, 0.1)
    assert choice.choose([STREAMS, TLS], TRY_BYTES_MAX + 1, 0.0) == STREAMS
    tried = [choice.choose([STREAMS, TLS], MIB, 1.0) for _ in range(10)]
    assert tried.count(TLS) == TRIES, "also where nothing came of it"
    assert choice.choose([STREAMS, TLS], MIB, 0.5 * TRY_AGAIN_S) == STREAMS
    assert choice.choose([STREAMS, TLS], MIB, 1.0 + TRY_AGAIN_S) == TLS


def test_what_grew_slow_is_left_for_what_was_measured() -> None:
    choice = PathChoice()
    transfers(choice, {STREAMS: 400, TLS: 200}, 10)
    for _ in range(20):
        choice.measured(STREAMS, 16 * MIB, 16 / 50)
    assert choice.choose([STREAMS, TLS], 16 * MIB, 10.0) == TLS


def test_a_path_that_fails_is_left_for_a_time_that_doubles() -> None:
    choice = PathChoice()
    choice.failed(STREAMS, "refused", 0.0)
    assert choice.choose([STREAMS, TLS], 16 * MIB, 1.0) == TLS
    assert choice.choose([STREAMS], 16 * MIB, 1.0) == STREAMS, "the only one there is"
    assert choice.left_s(STREAMS, 1.0) == LEFT_S - 1.0
    choice.failed(STREAMS, "refused", LEFT_S)
    assert choice.left_s(STREAMS, LEFT_S) == 2 * LEFT_S
    for _ in range(100):
        choice.failed(STREAMS, "refused", 0.0)
    assert choice.left_s(STREAMS, 0.0) == LEFT_S_MAX
    choice.measured(STREAMS, 1, 0.1)
    assert not choice.left_s(STREAMS, 0.0) and not choice.paths[STREAMS].why


def test_bursts_are_told_from_pauses() -> None:
    meter = BurstMeter()
    for step in range(9):
        assert meter.came(MIB, 1.0 + step * 0.01) is None
    found = meter.came(MIB, 100.0)
    assert found is not None and found.size == 8 * MIB and abs(found.took_s - 0.08) < 1e-9
    assert meter.over() is None, "one piece is no burst"
    assert all(meter.came(MIB, 0.2 * step) is None for step in range(20)), "each a pause after the other"


def test_a_burst_without_end_is_cut() -> None:
    meter = BurstMeter()
    found = [meter.came(MIB, 0.001 * step) for step in range(200)]
    assert [each.size for each in found if isinstance(each, Burst)] == [64 * MIB] * 3
