"""Settings of what people are told: of their jobs, and of what is wrong."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from actorgrid.notification_words import events_of, target_fault

from .section import Section, setting


def _networks(texts: list[str]) -> list[str]:
    import ipaddress

    for text in texts:
        try:
            ipaddress.ip_network(text, strict=False)
        except ValueError:
            raise PydanticCustomError(
                "no_network", "{text} is no network; write one like 10.0.0.0/8 or 127.0.0.1/32", {"text": repr(text)}
            ) from None
    return texts


def checked_target_setting(texts: list[str]) -> list[str]:
    """Targets as a setting has them."""
    for text in texts:
        fault = target_fault(text)
        if fault:
            raise PydanticCustomError("no_target", "{fault}", {"fault": fault})
    return texts


def _events(words: list[str]) -> list[str]:
    try:
        return events_of(words)
    except ValueError as error:
        raise PydanticCustomError("no_event", "{fault}", {"fault": str(error)}) from None


class NotificationsSection(Section):
    """Whom jobs and alerts tell of themselves, and how it is sent."""

    file: str = setting(
        "",
        "file with named targets, keys and the mail command, mode 0600; empty: notifications.yaml in the data folder",
    )
    default_targets: Annotated[list[str], AfterValidator(checked_target_setting)] = setting(
        [], "whom jobs tell that were submitted at this host's door and say nothing of it", live=True, max_length=4
    )
    default_events: Annotated[list[str], AfterValidator(_events)] = setting(
        ["failed", "lost"], "what those targets are told of", live=True, max_length=6
    )
    allowed_networks: Annotated[list[str], AfterValidator(_networks)] = setting(
        [],
        "networks beyond the public internet that webhooks of users may reach: 10.0.0.0/8",
        live=True,
        max_length=100,
    )
    ca_file: str = setting("", "certificates of authorities that webhooks are believed by; empty: the system's")
    timeout_s: float = setting(10.0, "time for one try", live=True, ge=0.5, le=120)
    give_up_s: float = setting(
        86_400.0, "a notification that could not be sent for so long is given up", live=True, ge=1, le=604_800
    )
