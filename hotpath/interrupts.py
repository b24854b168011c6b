"""Taking back an exception that one thread raises in another (``PyThreadState_SetAsyncExc``)."""

from __future__ import annotations

import ctypes
import threading

_set_exception = ctypes.pythonapi.PyThreadState_SetAsyncExc
_LOOKS = 1_000


class _TakenBack(BaseException):
    """Raised and caught here."""


def take_back_interrupt() -> None:
    """Leave nothing of an exception that another thread raised in this one, whether it has come or not.

    It is removed, and another one is raised and caught here. Where one is only removed, the interpreter goes on to look
    for it at every call and every turn of a loop, as long as the process lives; and CPython 3.11 never gets beyond the
    first step of a function that is traced, profiled or debugged: it looks for the exception anew.
    """
    here = ctypes.c_ulong(threading.get_ident())
    _set_exception(here, None)
    try:
        _set_exception(here, ctypes.py_object(_TakenBack))
        for _ in range(_LOOKS):  # it is raised where a call ends or a loop turns, within the first few
            pass
    except _TakenBack:
        pass
