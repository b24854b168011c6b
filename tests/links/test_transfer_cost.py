"""What a transfer takes of processors, and how fast they could do it."""

from __future__ import annotations

import os

from actorgrid.actors.links.transfer_cost import QUESTION, ProcessorUse, answered, process_use, transfer_cost

GB = 10**9


def use(cpu_s: float, cores: int = 2, machine: int = 1) -> ProcessorUse:
    return ProcessorUse(cpu_s, cores, machine)


def test_ends_on_one_machine_share_its_cores() -> None:
    cost = transfer_cost((use(1.0), use(2.0)), (use(5.0), use(5.5)), 2 * GB)
    assert cost is not None and cost["same_machine"]
    assert (cost["cpu_s_per_gb_here"], cost["cpu_s_per_gb_there"]) == (0.5, 0.25)
    assert cost["cpu_bound_mb_per_s"] == round(2 / 0.75 * 1e3, 1)


def test_ends_on_two_machines_are_as_fast_as_the_slower_one() -> None:
    there = (use(0.0, 8, 2), use(2.0, 8, 2))
    cost = transfer_cost((use(0.0), use(1.0)), there, GB)
    assert cost is not None and not cost["same_machine"]
    assert cost["cpu_bound_mb_per_s"] == 2000.0
    unknown = transfer_cost((use(0.0, machine=0), use(1.0, machine=0)), (use(0.0, machine=0), use(1.0, machine=0)), GB)
    assert unknown is not None and not unknown["same_machine"]


def test_nothing_is_said_of_nothing() -> None:
    assert transfer_cost((use(0.0), use(1.0)), (use(0.0), use(1.0)), 0) is None


def test_an_answer_is_told_from_an_echo() -> None:
    now = process_use()
    assert answered(now.packed()) == now and now.cores == len(os.sched_getaffinity(0))
    assert answered(QUESTION) is None, "a host of before sends back what came"
    assert answered(b"") is None and answered(QUESTION + b"x") is None
    assert answered(ProcessorUse(-1.0, 2, 0).packed()) is None
