"""Pictures of graphs: where boxes go, which steps share one, and what a chart of their times says."""

from __future__ import annotations

import json
import random
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from actorgrid.cli.planned_graph import graph_of_file
from actorgrid.dag.hosts import HostCapacity
from actorgrid.dag.layered_layout import lay_out
from actorgrid.dag.perfetto import trace_json
from actorgrid.dag.picture import draw_graph
from actorgrid.dag.planning import plan_graph
from actorgrid.dag.step_groups import BOXES_MAX, COLUMNS_MAX, arrows_between, columns, grouped
from actorgrid.dag.step_view import GraphView, StepView, view_of_graph
from actorgrid.dag.svg import TIMES
from actorgrid.dag.timeline import draw_timeline, lanes_of
from actorgrid.errors import InvalidGraph

from .heft import random_graph

MONTAGE = Path(__file__).parent / "workflows/montage-chameleon-2mass-01d-001.json"
SVG = "{http://www.w3.org/2000/svg}"


def shapes(svg: str, kind: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg).iter(f"{SVG}{kind}"))


def texts(svg: str) -> list[str]:
    return [each.text or "" for each in shapes(svg, "text")]


def titles(svg: str) -> list[str]:
    return [each.text or "" for each in shapes(svg, "title")]


def ran(id: str, producers: tuple[int, ...], start_s: float, end_s: float, host: str = "h", gpu: int = -1) -> StepView:
    gpus = () if gpu < 0 else (gpu,)
    return StepView(id, "succeeded", producers, host=host, gpu_indexes=gpus, start_s=start_s, end_s=end_s)


def fan(count: int) -> GraphView:
    parts = [StepView(f"part-{number}", "succeeded" if number % 3 else "failed", (0,)) for number in range(count)]
    last = StepView("total", "waiting", tuple(range(1, count + 1)))
    return GraphView("fan", (StepView("load", "succeeded"), *parts, last))


def test_every_step_of_a_small_graph_has_a_box_with_its_name_state_and_time() -> None:
    view = GraphView("<two> & one", (ran("a", (), 0, 1.5), StepView("b <&> c", "waiting", (0,))), "running")
    svg = draw_graph(view)
    assert {"<two> & one", "2 steps · running", "a", "1.5 s · succeeded", "b <&> c", "1 waiting"} <= set(texts(svg))


def test_montage_is_drawn_with_its_critical_path_in_arrows() -> None:
    graph = graph_of_file(MONTAGE)
    plan = plan_graph(graph, [HostCapacity(f"h{number}") for number in range(4)])
    view = view_of_graph(graph, "Montage", plan)
    svg = draw_graph(view)
    assert {step.id for step in view.steps} <= {text.split(" · ")[0] for text in titles(svg)}
    assert sum(each.get("stroke") == "#d9480f" for each in shapes(svg, "path")) >= 6


@pytest.mark.parametrize("seed", range(8))
def test_boxes_do_not_overlap_and_arrows_lead_to_the_right(seed: int) -> None:
    dice = random.Random(seed)
    count = 60
    sizes = [(dice.uniform(40, 200), dice.uniform(20, 60)) for _ in range(count)]
    arrows = {(dice.randrange(target), target): 1 for target in range(1, count) for _ in range(dice.randrange(3))}
    laid = lay_out(sizes, arrows)
    for one in range(count):
        for other in range(one):
            (x1, y1), (x2, y2) = laid.corners[one], laid.corners[other]
            apart = x1 + sizes[one][0] <= x2 or x2 + sizes[other][0] <= x1
            assert apart or y1 + sizes[one][1] <= y2 or y2 + sizes[other][1] <= y1, (one, other)
    for (source, target), way in laid.ways.items():
        assert [x for x, _ in way] == sorted(x for x, _ in way)
        assert way[0][0] == laid.corners[source][0] + sizes[source][0]
        assert way[-1][0] == laid.corners[target][0]
    assert all(y >= 0 and y + size[1] <= laid.height + 1e-6 for (_, y), size in zip(laid.corners, sizes, strict=True))


def test_a_thousand_of_the_same_share_a_box_with_a_cell_for_each() -> None:
    svg = draw_graph(fan(998))
    assert f"part {TIMES} 998" in texts(svg)
    assert sum(title.startswith("part-") for title in titles(svg)) == 998
    assert len(shapes(svg, "path")) == 4, "two arrows with their heads"


def test_many_thousands_share_a_bar() -> None:
    svg = draw_graph(fan(20_000))
    assert f"part {TIMES} 20,000" in texts(svg)
    assert "6,667 failed" in titles(svg)
    assert len(svg) < 10_000


def test_a_loop_is_one_box_although_all_its_rounds_are_merged() -> None:
    rounds = [StepView(f"half[{number}]", "waiting", (number - 1,) if number else ()) for number in range(200)]
    merge = StepView("half", "waiting", tuple(range(200)), merges=True)
    assert sorted(map(len, grouped([*rounds, merge]))) == [1, 200]


@pytest.mark.parametrize(("seed", "count"), [(1, 300), (2, 1_000), (3, 3_000)])
def test_groups_make_no_circle_and_are_few(seed: int, count: int) -> None:
    steps = view_of_graph(random_graph(seed, count, 0.3), "random").steps
    boxes = grouped(steps)
    assert sorted(member for members in boxes for member in members) == list(range(count))
    assert len(boxes) <= BOXES_MAX
    assert columns(steps, boxes) <= COLUMNS_MAX
    laid = lay_out([(10.0, 10.0)] * len(boxes), arrows_between(steps, boxes))
    for source, target in laid.ways:
        assert laid.corners[source][0] < laid.corners[target][0]


def test_too_many_boxes_are_refused_with_what_to_do() -> None:
    with pytest.raises(InvalidGraph) as refused:
        draw_graph(fan(3_000), "never")
    assert "leave --group out" in refused.value.hint


def test_what_ran_at_once_is_in_lanes_of_its_host_and_device() -> None:
    steps = (
        ran("a", (), 0, 2),
        ran("b", (), 1, 3),
        ran("c", (0,), 2, 4),
        ran("d", (), 0, 1, gpu=1),
        ran("e", (), 1, 2, "i"),
    )
    lanes = lanes_of(GraphView("lanes", steps, hosts={"h": "host-10", "i": "host-9"}))
    found = [(lane.host, lane.device, [steps[number].id for number in lane.steps]) for lane in lanes]
    assert found == [("i", "cpu", ["e"]), ("h", "cpu", ["a", "c"]), ("h", "cpu", ["b"]), ("h", "gpu 1", ["d"])]


def test_the_critical_path_goes_by_producers_and_by_who_was_in_the_place_before() -> None:
    steps = (
        ran("a", (), 0, 5),
        ran("b", (), 5, 9),  # waited for the host
        ran("c", (1,), 9.01, 12),
        ran("other", (), 0, 8.9, "elsewhere"),
    )
    assert GraphView("path", steps).critical_path() == (0, 1, 2)
    assert GraphView("nothing", (StepView("a"),)).critical_path() == ()


def test_a_timeline_says_what_was_expected_and_what_it_hung_on() -> None:
    steps = (
        StepView("load", "succeeded", (), "h", (), 0.0, 2.0, 3.0),
        StepView("train-1", "failed", (0,), "h", (1,), 2.5, 6.0, 1.0, note="no"),
        StepView("train-2", "running", (0,), "h", (0,), 2.5, 7.0),
    )
    svg = draw_timeline(GraphView("times", steps, "failed", {"h": "host-1"}, planned_s=5.0))
    said = texts(svg)
    assert {"host-1", "cpu", "gpu 0", "gpu 1", f"train {TIMES} 2", "as planned", "Critical path: 2 steps"} <= set(said)
    assert "train-1 · failed · took 3.5 s · expected 1 s · on h gpu 1 · no" in titles(svg)
    assert "so far 7 s" in next(text for text in said if text.startswith("3 steps"))


def test_a_hundred_thousand_short_steps_make_a_small_file() -> None:
    steps = tuple(
        ran(f"s{number}", (), number * 1e-3, number * 1e-3 + 9e-4, f"h{number % 4}") for number in range(100_000)
    )
    assert len(draw_timeline(GraphView("many", steps))) < 2_000_000


def test_nothing_begun_is_no_timeline() -> None:
    with pytest.raises(InvalidGraph, match="no timeline yet"):
        draw_timeline(GraphView("new", (StepView("a", "waiting"),)))


def test_a_trace_has_each_step_on_its_device_and_flows_along_the_path() -> None:
    steps = (ran("a", (), 0, 1), ran("b", (0,), 1.1, 2, "i", 3), StepView("c", "waiting", (1,)))
    events = json.loads(trace_json(GraphView("t", steps, hosts={"h": "one", "i": "two"})))["traceEvents"]
    complete = {each["name"]: each for each in events if each["ph"] == "X"}
    assert complete.keys() == {"a", "b"}
    assert (complete["b"]["ts"], complete["b"]["dur"]) == (1_100_000, 900_000)
    names = {(each["pid"], each["tid"]): each["args"]["name"] for each in events if each["ph"] == "M"}
    assert names[complete["b"]["pid"], complete["b"]["tid"]] == "gpu 3"
    assert names[complete["b"]["pid"], 0] == "two"
    assert [(each["ph"], each["ts"]) for each in events if each["ph"] in "sf"] == [("s", 1_000_000), ("f", 1_100_000)]
