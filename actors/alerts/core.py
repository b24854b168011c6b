"""Which alerts fire: a condition has to hold for a while, and to be gone for a while. Decisions only.

As in Prometheus an alert is pending until its condition has held for the rule's time, and then firing; it is resolved
when the condition has been gone for ``CLEAR_S``, so that one that flickers is told of once. What is silenced fires all
the same, and nobody is told.

Bounds: 500 alerts at a time, 200 silences; 100 that were resolved are remembered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TypedDict

from .figures import AlertFigures
from .rules import RULES, AlertRule

CLEAR_S = 60.0
ALERTS_MAX, SILENCES_MAX, RESOLVED_MAX = 500, 200, 100
PENDING, FIRING, RESOLVED = "pending", "firing", "resolved"


class SilenceRecord(TypedDict):
    """Of which alerts nobody is told, until when; patterns as of a shell."""

    silence_id: str
    """Its id."""
    alert: str
    """The names of rules."""
    host: str
    """The names of hosts."""
    subject: str
    """What is concerned: a GPU, a host."""
    until: float
    """When it ends, seconds since the epoch."""
    by: str
    """Who asked for it."""
    reason: str
    """Why."""
    only_firing_since: float
    """Of one that was acknowledged: when that began to fire; a later one is told of. 0: all."""


class KeptAlert(TypedDict):
    """An alert that fires, as it is kept for the time after a restart."""

    rule: str
    subject: str
    firing_since: float
    told_at: float


@dataclass(slots=True)
class Alert:
    """One alert of one host. Times are seconds since the epoch."""

    rule: AlertRule
    subject: str
    state: str
    since: float
    """When its condition began to hold."""
    value: float
    firing_since: float = 0.0
    gone_since: float | None = None
    told_at: float = 0.0
    """When somebody was told that it fires; 0: nobody was."""


@dataclass(frozen=True, slots=True)
class AlertNews:
    """What somebody is to be told: that an alert fires, fires still, or is resolved."""

    alert: Alert
    word: str
    at: float


@dataclass(slots=True)
class AlertBook:
    """The alerts of the host called *host*."""

    host: str
    silences: Mapping[str, SilenceRecord] = field(default_factory=dict)
    alerts: dict[tuple[str, str], Alert] = field(default_factory=dict)
    resolved: deque[Alert] = field(default_factory=lambda: deque(maxlen=RESOLVED_MAX))

    def load(self, kept: Iterable[KeptAlert]) -> None:
        """Take what fired before a restart: it is not told of anew."""
        rules = {rule.name: rule for rule in RULES}
        for each in kept:
            if each["rule"] in rules and len(self.alerts) < ALERTS_MAX:
                since = each["firing_since"]
                alert = Alert(rules[each["rule"]], each["subject"], FIRING, since, 0.0, since, None, each["told_at"])
                self.alerts[each["rule"], each["subject"]] = alert

    def kept(self) -> list[KeptAlert]:
        """What fires, to be kept."""
        return [
            {
                "rule": each.rule.name,
                "subject": each.subject,
                "firing_since": each.firing_since,
                "told_at": each.told_at,
            }
            for each in self.alerts.values()
            if each.state == FIRING
        ]

    def look(self, figures: AlertFigures, now: float, repeat_s: float) -> list[AlertNews]:
        """Decide by the figures of now; gives what is to be told. What fires is told again each *repeat_s*."""
        for rule in RULES:
            if rule.of_cluster and not figures.leads:
                # Whoever leads now tells of it: here it just ends.
                for key in [key for key in self.alerts if key[0] == rule.name]:
                    del self.alerts[key]
                continue
            found = rule.condition(figures)
            for subject, value in found.items():
                self._holds(rule, subject, value, now)
            for alert in self.alerts.values():
                if alert.rule is rule and alert.subject not in found and alert.gone_since is None:
                    alert.gone_since = now
        news: list[AlertNews] = []
        for key, alert in list(self.alerts.items()):
            # The clock may have been set back: nothing waits until it is as late again.
            alert.since, alert.told_at = min(alert.since, now), min(alert.told_at, now)
            alert.gone_since = None if alert.gone_since is None else min(alert.gone_since, now)
            if alert.state == PENDING and alert.gone_since is None and now - alert.since >= alert.rule.wait_s:
                alert.state, alert.firing_since = FIRING, now
            if alert.gone_since is not None and (alert.state == PENDING or now - alert.gone_since >= CLEAR_S):
                del self.alerts[key]
                if alert.state == FIRING:
                    alert.state = RESOLVED
                    self.resolved.append(alert)
                    if alert.told_at:
                        news.append(AlertNews(alert, RESOLVED, now))
            elif alert.state == FIRING and alert.gone_since is None:
                due = not alert.told_at or now - alert.told_at >= repeat_s
                if due and self.silence_of(alert, now) is None:
                    alert.told_at = now
                    news.append(AlertNews(alert, FIRING, now))
        return news

    def _holds(self, rule: AlertRule, subject: str, value: float, now: float) -> None:
        alert = self.alerts.get((rule.name, subject))
        if alert is not None:
            alert.value, alert.gone_since = value, None
        elif len(self.alerts) < ALERTS_MAX:
            self.alerts[rule.name, subject] = Alert(rule, subject, PENDING, now, value)

    def silence_of(self, alert: Alert, now: float) -> SilenceRecord | None:
        """The silence that keeps people from being told of *alert*."""
        for silence in self.silences.values():
            if (
                silence["until"] > now
                and fnmatchcase(alert.rule.name, silence["alert"])
                and fnmatchcase(self.host, silence["host"])
                and fnmatchcase(alert.subject, silence["subject"])
                and (not silence["only_firing_since"] or alert.firing_since <= silence["only_firing_since"])
            ):
                return silence
        return None

    def said(self, alert: Alert) -> str:
        """The line for people."""
        return alert.rule.said.format(host=self.host, subject=alert.subject, value=alert.value)
