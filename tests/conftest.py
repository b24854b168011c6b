from __future__ import annotations

import signal

from hypothesis import settings

# A shell that puts the tests into the background has them ignore SIGINT, and so every process they start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test says how fast its machine is, least of all while every process is being measured.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
