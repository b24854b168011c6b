"""Work stealing between workers: what sits behind a call that runs longer than expected goes to who has nothing to do.

Asked of the dispatcher with its lock held. A worker that gives calls back has not begun them, and never will: they run
once. Where none answers (lanes.py, ``Lane.recall``), the first outcome counts, and tokens tell the runs apart.
"""

from __future__ import annotations

from typing import Any

from actorgrid.transports.task_frames import decode_failure_body, encode_cancel, encode_recall

from .lanes import Lane, LeasedWorker, TaskCall


def ask_back(lane: Lane, now: float) -> bool:
    """Ask for calls of *lane* back that wait behind a long one; gives whether there is something to send.

    What is not waited for any longer to be given back is in its queue again.
    """
    asked = lane.victims(now)
    for link in asked:
        link.asked_at = now
        link.out += encode_recall()
    unconfirmed = lane.recall(now)
    for link, call in reversed(unconfirmed):
        link.gave(call.task_id, now)
        call.may_have_begun(link.token)
        link.recalled[call.task_id] = call
        link.out += encode_cancel(call.task_id)
        lane.push(call, now, front=True)
    return bool(asked or unconfirmed)


def given_back(link: LeasedWorker, task_ids: Any, now: float) -> tuple[int, int]:
    """Let calls wait again that *link* has not begun; gives how many, and how many more nobody wants any longer.

    What it names that it was not sent, or has answered before, is passed over.
    """
    link.asked_at = None
    ids = {task_id for task_id in task_ids if isinstance(task_id, int)} if isinstance(task_ids, list) else set()
    for task_id in ids & link.recalled.keys():
        del link.recalled[task_id]  # it did not begin, as is known now, but was sent elsewhere already
    found = [call for task_id, call in link.calls.items() if task_id in ids]
    for call in found:
        link.gave(call.task_id, now)
        call.done = call.cancelled
    wanted = [call for call in found if not call.cancelled]
    for call in reversed(wanted):
        call.lane.push(call, now, front=True)
    return len(wanted), len(found) - len(wanted)


def ran_after_all(link: LeasedWorker, frame: list[Any], now: float) -> TaskCall | None:
    """Take the answer about a call that was sent elsewhere unconfirmed. One that did run counts, if it is the first."""
    call = link.recalled.pop(frame[1], None)
    if call is None or call.done or call.cancelled:
        return None
    if frame[2] and decode_failure_body(frame[3])[0].code in ("TaskCancelled", "UnknownKey"):
        return None
    call.done = True
    if call.link is None:
        call.lane.forget(call)
    else:
        call.link.recalled[call.task_id] = call
        call.link.out += encode_cancel(call.task_id)
        call.link.gave(call.task_id, now)
    return call
