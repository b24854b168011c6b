"""``actorgrid chaos gossip`` and ``gossip-figures``: what they print, and how they leave."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actorgrid.chaos.gossip import scenarios
from actorgrid.chaos.gossip.mutants import MUTANTS
from actorgrid.chaos.gossip.state_mutants import STATE_MUTANTS
from actorgrid.cli.main import cli


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as left:
        cli.main(["chaos", *words])
    return int(left.value.code or 0), capsys.readouterr().out


def test_scenarios_are_played_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, "gossip", "one_dies", "farewell", "--seeds", "2", "--json")
    assert code == 0
    assert [(each["scenario"], each["runs"], each["violations"]) for each in json.loads(out)] == [
        ("one_dies", 2, []),
        ("farewell", 2, []),
    ]


def test_a_violation_leaves_with_one_and_names_its_seed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant = MUTANTS["never_refutes"]
    monkeypatch.setitem(scenarios.SCENARIOS, "accused", lambda seed, _: scenarios.accused(seed, mutant.parts))
    code, out = run(capsys, "gossip", "accused", "--seeds", "1", "--seed", "3")
    assert code == 1
    assert "accused, seed 3: host-" in out
    assert "actorgrid chaos gossip accused --seed 3 --seeds 1" in out


def test_those_of_the_shared_state_are_played_too(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, "gossip", "state_relays_die", "state_pair", "--seeds", "2", "--json")
    assert code == 0
    assert [(each["scenario"], each["runs"], each["violations"]) for each in json.loads(out)] == [
        ("state_relays_die", 2, []),
        ("state_pair", 2, []),
    ]


@pytest.mark.system
def test_figures_of_the_shared_state_are_told_and_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    words = ("state-figures", "--hosts", "9", "--writes", "2", "--burst", "20", "--json", "--plot")
    drawn = [tmp_path / "one.png", tmp_path / "two.png"]
    for path in drawn:
        code, out = run(capsys, *words, str(path))
        assert code == 0
    told = json.loads(out)
    assert told["a write everywhere, s: 3 sites, 200 ms between"]["missing"] == 0
    assert told["bytes/s: 9 hosts, one site, at rest"]["a host"] == pytest.approx(182, abs=10)  # two digests a round
    assert drawn[0].read_bytes() == drawn[1].read_bytes()
    assert drawn[0].read_bytes().startswith(b"\x89PNG")
    assert run(capsys, *words, "file.txt")[0] not in (0, 1)


def test_a_scenario_that_there_is_not_is_a_named_error(capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = run(capsys, "gossip", "nowhere")
    assert code not in (0, 1)


@pytest.mark.system
def test_planted_bugs_are_hunted(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, "gossip", "--mutants", "--seeds", "60", "--json")
    assert code == 0
    assert {each["mutant"] for each in json.loads(out) if each["what"]} == {*MUTANTS, *STATE_MUTANTS}
    code, out = run(capsys, "gossip", "--mutants", "--seeds", "1")
    assert code == 1 and "judges_after_sleep" in out


def test_a_picture_is_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    words = ("gossip-figures", "--hosts", "16", "--seconds", "5", "--events", "2", "--plot")
    drawn = [tmp_path / "one.png", tmp_path / "two.png"]
    for path in drawn:
        assert run(capsys, *words, str(path))[0] == 0
    assert drawn[0].read_bytes() == drawn[1].read_bytes()
    assert drawn[0].read_bytes().startswith(b"\x89PNG")
    for wrong in (("file.txt",), (str(tmp_path / "x.png"), "--slow", "0.1"), (str(tmp_path / "no" / "x.png"),)):
        assert run(capsys, *words, *wrong)[0] not in (0, 1)


def test_figures_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("gossip-figures", "--hosts", "20", "--seconds", "10", "--events", "2")
    code, out = run(capsys, *words, "--json")
    told = json.loads(out)
    assert code == 0
    assert told["traffic"]["datagrams_per_s"] == pytest.approx(2.0, abs=0.3)
    assert told["declared dead, s"]["events"] == 2
    code, out = run(capsys, *words, "--slow", "0.2")
    assert code == 0 and "Lifeguard, stalls forgiven" in out
    code, _ = run(capsys, *words, "--profile", "nowhere")
    assert code not in (0, 1)
