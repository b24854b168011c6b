"""Files for Prometheus and Grafana: of the right shape, each alert with what to do, no panel over another."""

from __future__ import annotations

import json
import re
from itertools import combinations
from typing import Any

import pytest
import yaml

from actorgrid.monitoring.alert_rules import RULES, rule_file
from actorgrid.monitoring.dashboards import DASHBOARDS, Dashboard, dashboard_json
from actorgrid.monitoring.scrape_config import CA_FILE, scrape_config


def panels(dashboard: Dashboard) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = dashboard_json(dashboard)["panels"]
    return found


def test_rules_come_back_from_yaml_as_they_are_and_have_names_of_their_own() -> None:
    (group,) = yaml.safe_load(yaml.safe_dump(rule_file(), sort_keys=False))["groups"]
    assert [rule["alert"] for rule in group["rules"]] == [rule.name for rule in RULES]
    assert len({rule.name for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_an_alert_says_what_is_wrong_and_what_to_do(rule: Any) -> None:
    assert rule.name.startswith("Actorgrid")
    written = next(each for each in rule_file()["groups"][0]["rules"] if each["alert"] == rule.name)
    assert re.fullmatch(r"\d+s", written["for"])
    assert rule.summary and rule.action
    by = re.findall(r"by \(([^)]*)\)", rule.expression)
    known = {label.strip() for labels in by for label in labels.split(",")}
    shown = set(re.findall(r"\$labels\.(\w+)", rule.summary))
    assert shown <= known or rule.expression.startswith("up{"), "a label that the expression has aggregated away"


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda one: one.uid)
def test_panels_lie_beside_each_other_and_have_numbers_and_queries_of_their_own(dashboard: Dashboard) -> None:
    found = panels(dashboard)
    assert [panel["id"] for panel in found] == list(range(1, len(found) + 1))
    for one, other in combinations([panel["gridPos"] for panel in found], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in found)
    for panel in found:
        names = [target["refId"] for target in panel["targets"]]
        assert len(set(names)) == len(names) > 0
    assert json.loads(json.dumps(dashboard_json(dashboard))) == dashboard_json(dashboard)


def test_hosts_behind_tls_are_believed_by_their_authority_alone() -> None:
    (job,) = scrape_config(["https://10.0.0.1:7404", "https://[fd00::2]:7404"])["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["10.0.0.1:7404", "[fd00::2]:7404"]}]
    assert (job["scheme"], job["tls_config"]["ca_file"]) == ("https", CA_FILE)
    assert "insecure_skip_verify" not in job["tls_config"]


def test_a_host_by_itself_is_asked_without_tls() -> None:
    (job,) = scrape_config(["http://127.0.0.1:7400"])["scrape_configs"]
    assert (job["scheme"], "tls_config" in job) == ("http", False)
