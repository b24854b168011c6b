"""The operator's file: named targets, the command that sends mail, the keys that sign. And where a target leads.

It holds what is nobody else's to read, addresses with secrets in them and keys, so it is no setting, which any key of
the cluster may ask for, and is only read where nobody but the agent's user (or root) may read or write it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from actorgrid.errors import KeyExposed, MalformedConfig, TargetNotAllowed, UnknownTarget
from actorgrid.notification_words import MAIL, WEBHOOK, target_fault, url_fault

from .signature import key_bytes

FILE_NAME = "notifications.yaml"
BYTES_MAX = 256 * 1024
NAMED_MAX, KEYS_MAX, ARGUMENTS_MAX = 200, 4, 64
TO, SUBJECT = "{to}", "{subject}"


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a message goes: *url* or *mail_to*. *trusted*: the operator named it, so that its address may be any."""

    url: str = ""
    mail_to: str = ""
    keys: tuple[str, ...] = ()
    trusted: bool = False


@dataclass(frozen=True, slots=True)
class OperatorFile:
    """What the file says; an absent one says nothing. *keys* sign webhooks that users name."""

    named: Mapping[str, Destination] = field(default_factory=dict)
    mail_command: tuple[str, ...] = ()
    mail_from: str = ""
    keys: tuple[str, ...] = ()

    def destination(self, target: str) -> Destination:
        """Where *target* leads. Raises UnknownTarget for a name that is not here, TargetNotAllowed for mail where no
        command sends it."""
        kind, colon, rest = target.partition(":")
        if not colon:
            found = self.named.get(target)
            if found is None:
                raise UnknownTarget(
                    f"there is no target {target[:40]!r} for notifications",
                    asked=target[:80],
                    found=", ".join(sorted(self.named)[:10]) or "none is named",
                    hint="the operator names targets on each host (docs/notifications.md); webhook:URL needs none",
                )
        else:
            found = Destination(mail_to=rest) if kind == MAIL else Destination(url=rest, keys=self.keys)
        if found.mail_to and not self.mail_command:
            raise TargetNotAllowed(
                "this cluster sends no mail",
                asked=target[:80],
                found="no mail_command",
                hint="the operator names a command that sends it (docs/notifications.md); webhook:URL needs none",
            )
        return found


def read_operator_file(path: Path) -> OperatorFile:
    """What *path* says; nothing, where there is no such file. Raises KeyExposed where others have access to it,
    MalformedConfig for what is not understood."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return OperatorFile()
    except OSError as error:
        raise MalformedConfig(f"cannot read {path}: {error.strerror}", asked=str(path)) from error
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if (
            not stat.S_ISREG(found.st_mode)
            or found.st_uid not in (0, os.geteuid())
            or stat.S_IMODE(found.st_mode) & 0o077
        ):
            raise KeyExposed(
                f"others than the agent have access to {path}, which holds secrets",
                asked=str(path),
                found=f"mode {stat.S_IMODE(found.st_mode):04o} of uid {found.st_uid}",
                hint=f"chown it to uid {os.geteuid()} and chmod 0600 {path}",
            )
        data = file.read(BYTES_MAX + 1)
    import yaml  # only where there is such a file: no process of a host has it else

    if len(data) > BYTES_MAX:
        raise MalformedConfig(f"{path} is too large", found=f"over {BYTES_MAX} bytes")
    try:
        return parsed(yaml.safe_load(data))
    except yaml.YAMLError as error:
        raise MalformedConfig(f"{path} is no YAML: {str(error)[:300]}", asked=str(path)) from None
    except ValueError as error:
        raise MalformedConfig(f"{path}: {error}", asked=str(path), hint="docs/notifications.md shows one") from None


def parsed(said: Any) -> OperatorFile:
    """What the content of a file says. Raises ValueError."""
    table = _table("the file", said or {}, ("targets", "mail_command", "mail_from", "key"))
    command = table.get("mail_command") or []
    if (
        not isinstance(command, list)
        or len(command) > ARGUMENTS_MAX
        or not all(isinstance(each, str) for each in command)
    ):
        raise ValueError("mail_command is a list of texts, [/usr/sbin/sendmail, -i, '{to}']: no shell reads it")
    targets = table.get("targets") or {}
    if not isinstance(targets, dict) or len(targets) > NAMED_MAX:
        raise ValueError(f"targets is a map of at most {NAMED_MAX} names")
    return OperatorFile(
        {str(name): _named(str(name), each) for name, each in targets.items()},
        tuple(command),
        str(table.get("mail_from") or ""),
        _keys(table.get("key")),
    )


def _named(name: str, said: Any) -> Destination:
    table = _table(f"target {name}", said, (WEBHOOK, MAIL, "key"))
    if ":" in name or target_fault(name):
        raise ValueError(f"{name[:40]!r} cannot be the name of a target: a letter, then letters, digits, '-' and '_'")
    url, address = str(table.get(WEBHOOK) or ""), str(table.get(MAIL) or "")
    if bool(url) == bool(address):
        raise ValueError(f"target {name} has either a webhook or a mail")
    # Of an address only what is wrong with it is said: it may hold a secret.
    fault = "it holds no address like https://HOST/PATH" if url and url_fault(url) else ""
    fault = fault or (target_fault(f"{MAIL}:{address}") if address else "")
    if fault:
        raise ValueError(f"target {name}: {fault}")
    return Destination(url, address, _keys(table.get("key")), True)


def _keys(said: Any) -> tuple[str, ...]:
    keys = [said] if isinstance(said, str) else said or []
    if not isinstance(keys, list) or len(keys) > KEYS_MAX:
        raise ValueError(f"key is one signing key, or a list of at most {KEYS_MAX}")
    for key in keys:
        key_bytes(str(key))
    return tuple(map(str, keys))


def _table(what: str, said: Any, known: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(said, dict):
        raise ValueError(f"{what} is a map of {', '.join(known)}")
    for name in said:
        if name not in known:
            raise ValueError(f"{what} has {str(name)[:40]!r}; it may have {', '.join(known)}")
    return said
