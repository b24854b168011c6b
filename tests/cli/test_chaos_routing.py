"""``actorgrid chaos routing-figures``: what it prints."""

from __future__ import annotations

import json

import pytest

from actorgrid.cli.main import cli

FEW = ("routing-figures", "--seconds", "6", "--seeds", "2", "--gateways", "3")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as left:
        cli.main(["chaos", *words])
    return int(left.value.code or 0), capsys.readouterr().out


def test_each_way_is_told_beside_one_router(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, *FEW, "--json")
    rows = json.loads(out)
    assert code == 0 and [row["way"].partition(",")[0] for row in rows] == ["one router", "3", "3", "3", "3"]
    assert rows[0]["hits_kept"] == [1.0, 1.0] and all(0 < hit < 1 for row in rows for hit in row["hits"])
    code, out = run(capsys, *FEW)
    assert code == 0 and "least_loaded" in out
