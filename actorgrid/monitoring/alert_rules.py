"""Alerts for Prometheus: each names what is wrong, how bad, and the command that says more. The rules are our own."""

from __future__ import annotations

from typing import TypedDict

from actorgrid.actors.alerts.rules import RULES


class _Labels(TypedDict):
    severity: str


class _Annotations(TypedDict):
    summary: str
    action: str


_Rule = TypedDict("_Rule", {"alert": str, "expr": str, "for": str, "labels": _Labels, "annotations": _Annotations})


class _Group(TypedDict):
    name: str
    rules: list[_Rule]


class RuleFile(TypedDict):
    """What a rule file of Prometheus holds (Prometheus, Alerting rules)."""

    groups: list[_Group]


def rule_file() -> RuleFile:
    """All alerts, as a rule file has them."""
    rules: list[_Rule] = [
        {
            "alert": rule.name,
            "expr": rule.expression,
            "for": f"{rule.wait_s:g}s",
            "labels": {"severity": rule.severity.value},
            "annotations": {"summary": rule.summary, "action": rule.action},
        }
        for rule in RULES
    ]
    return {"groups": [{"name": "actorgrid", "rules": rules}]}
