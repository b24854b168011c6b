from __future__ import annotations

import signal

# A shell that puts the tests into the background has them ignore SIGINT, and so every process they start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
