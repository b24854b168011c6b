"""Sends one mail, by the operator's command: it is given the whole message on its standard input. For a thread."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess  # nosec B404 - the operator's command line, as a list, never through a shell
import tempfile
from email.message import EmailMessage
from email.utils import format_datetime, localtime

from .deliveries import SendResult
from .destinations import SUBJECT, TO, Destination, OperatorFile
from .outgoing import OutgoingMessage, one_line

SAID_BYTES_MAX = 400
SUBJECT_CHARS_MAX = 150
_PLACES = re.compile(f"{re.escape(TO)}|{re.escape(SUBJECT)}")


def send_mail(
    message: OutgoingMessage, destination: Destination, operator: OperatorFile, host_name: str, timeout_s: float
) -> SendResult:
    """Run the command, with ``{to}`` and ``{subject}`` in its arguments filled in. Never raises.

    What it exits with 0 for has been sent; else it is tried again.
    """
    subject = message.text[:SUBJECT_CHARS_MAX]
    mail = EmailMessage()
    mail["From"] = one_line(operator.mail_from or f"actorgrid@{host_name}")
    mail["To"] = destination.mail_to
    mail["Subject"] = subject
    mail["Date"] = format_datetime(localtime())
    mail["Message-ID"] = f"<{message.message_id}@actorgrid.invalid>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(message.lines())
    filled = {TO: destination.mail_to, SUBJECT: subject}  # at once: an address may hold {subject}
    argv = [_PLACES.sub(lambda found: filled[found[0]], each) for each in operator.mail_command]
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as said:
        given.write(mail.as_bytes())
        given.seek(0)
        try:
            process = subprocess.Popen(  # nosec B603
                argv, stdin=given, stdout=said, stderr=subprocess.STDOUT, start_new_session=True, close_fds=True
            )
        except (OSError, ValueError) as error:
            return SendResult(one_line(f"{argv[0]} cannot be started: {error}"))
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return SendResult(f"{argv[0]} was not done in {timeout_s:g} s")
        finally:
            # What it left running goes with it.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if status == 0:
            return SendResult()
        said.seek(0)
        text = one_line(said.read(SAID_BYTES_MAX).decode("utf-8", "replace")).strip()
        return SendResult(f"{argv[0]} ended with {status}" + (f": {text}" if text else ""))
