"""Light processes: millions in one program, with Erlang's manners.

A process costs some 300 bytes and less than a microsecond; it has a mailbox, a pid, links, monitors, names and a
supervisor, and when it fails, nobody else does. See docs/light_processes.md.
"""

from actorgrid.hotpath.light import NO_REPLY as NO_REPLY
from actorgrid.hotpath.light import Pid as Pid
from actorgrid.hotpath.light import ProcessCall as ProcessCall
from actorgrid.hotpath.light import SendTimer as SendTimer

from ..child import SupervisorFlags as SupervisorFlags
from ..exits import ExitReason as ExitReason
from ..server import handles as handles
from ..supervisor import CountChildren as CountChildren
from ..supervisor import DeleteChild as DeleteChild
from ..supervisor import RestartChild as RestartChild
from ..supervisor import StartChild as StartChild
from ..supervisor import TerminateChild as TerminateChild
from ..supervisor import WhichChildren as WhichChildren
from .asyncio_bridge import ask as ask
from .asyncio_bridge import serve as serve
from .asyncio_bridge import serving as serving
from .base import Process as Process
from .code_change import CodeChange as CodeChange
from .code_change import change_code as change_code
from .ends import exit_process as exit_process
from .events import CallReply as CallReply
from .events import ProcessDown as ProcessDown
from .events import ProcessExit as ProcessExit
from .gen_server import GenServer as GenServer
from .inspecting import ProcessInfo as ProcessInfo
from .inspecting import shard_figures as shard_figures
from .inspecting import top as top
from .overruns import HandlerInterrupted as HandlerInterrupted
from .overruns import Overrun as Overrun
from .process_spec import ProcessSpec as ProcessSpec
from .process_supervisor import DynamicSupervisor as DynamicSupervisor
from .process_supervisor import ProcessSupervisor as ProcessSupervisor
from .running import current_process as current_process
from .shard import Shard as Shard
from .shard_host import ShardHost as ShardHost
