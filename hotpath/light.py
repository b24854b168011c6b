"""The kernels of light processes, compiled or not, as ``actorgrid.hotpath`` chooses. Only who uses them loads them."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .reference.light_process import LightProcess
    from .reference.mailbox import Mailbox
    from .reference.pid_table import PidTable
    from .reference.process_core import ProcessCore
    from .reference.process_records import (
        NO_REPLY,
        Order,
        Pid,
        ProcessCall,
        ProcessCast,
        Receive,
        SendTimer,
        ShardAddress,
        Waiting,
    )
    from .reference.run_queue import RunQueue

    LIGHT_COMPILED: bool
elif os.environ.get("ACTORGRID_PURE_PYTHON") == "1":
    from .reference.light_process import LightProcess
    from .reference.mailbox import Mailbox
    from .reference.pid_table import PidTable
    from .reference.process_core import ProcessCore
    from .reference.process_records import (
        NO_REPLY,
        Order,
        Pid,
        ProcessCall,
        ProcessCast,
        Receive,
        SendTimer,
        ShardAddress,
        Waiting,
    )
    from .reference.run_queue import RunQueue

    LIGHT_COMPILED = False
else:
    try:
        from .mailbox import Mailbox
        from .pid_table import PidTable
        from .process_core import (
            NO_REPLY,
            LightProcess,
            Order,
            Pid,
            ProcessCall,
            ProcessCast,
            ProcessCore,
            Receive,
            SendTimer,
            ShardAddress,
            Waiting,
        )
        from .run_queue import RunQueue

        LIGHT_COMPILED = True
    except ModuleNotFoundError:
        from .reference.light_process import LightProcess
        from .reference.mailbox import Mailbox
        from .reference.pid_table import PidTable
        from .reference.process_core import ProcessCore
        from .reference.process_records import (
            NO_REPLY,
            Order,
            Pid,
            ProcessCall,
            ProcessCast,
            Receive,
            SendTimer,
            ShardAddress,
            Waiting,
        )
        from .reference.run_queue import RunQueue

        LIGHT_COMPILED = False

__all__ = [
    "LIGHT_COMPILED",
    "NO_REPLY",
    "LightProcess",
    "Mailbox",
    "Order",
    "Pid",
    "PidTable",
    "ProcessCall",
    "ProcessCast",
    "ProcessCore",
    "Receive",
    "RunQueue",
    "SendTimer",
    "ShardAddress",
    "Waiting",
]
