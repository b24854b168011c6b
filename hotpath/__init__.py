"""The hot path: compiled kernels, or their reference twins when no compiler was there.

``ACTORGRID_PURE_PYTHON=1`` takes the twins on purpose; both give the same answers. A kernel that is there
but does not load (built for another Python, a missing symbol) is an error, not a reason to be slow in
silence. Types come from the reference, so the compiled twin has to match it.
"""

import os
from typing import TYPE_CHECKING

from .memory_records import PoolStats, Segment, vendor_alignment_bytes
from .meter import LatencyWindow
from .records import NodeView, Placement, TypicalTask

if TYPE_CHECKING:
    from .reference.delta_merge import DeltaMerge, checked_pairs
    from .reference.dotted_parts import ContextParts, DottedParts
    from .reference.forecast import Forecast
    from .reference.memory_pool import Block, Blocks, Defragmentation, MemoryPool, Move
    from .reference.message_ring import MessageRing
    from .reference.placement import PlacementEngine
    from .reference.priority_bitmap import PriorityBitmap
    from .reference.rank_heap import RankHeap
    from .reference.timer_wheel import TimerWheel

    COMPILED: bool
elif os.environ.get("ACTORGRID_PURE_PYTHON") == "1":
    from .reference.delta_merge import DeltaMerge, checked_pairs
    from .reference.dotted_parts import ContextParts, DottedParts
    from .reference.forecast import Forecast
    from .reference.memory_pool import Block, Blocks, Defragmentation, MemoryPool, Move
    from .reference.message_ring import MessageRing
    from .reference.placement import PlacementEngine
    from .reference.priority_bitmap import PriorityBitmap
    from .reference.rank_heap import RankHeap
    from .reference.timer_wheel import TimerWheel

    COMPILED = False
else:
    try:
        from .delta_merge import DeltaMerge, checked_pairs
        from .dotted_parts import ContextParts, DottedParts
        from .forecast import Forecast
        from .memory_pool import Block, Blocks, Defragmentation, MemoryPool, Move
        from .message_ring import MessageRing
        from .placement import PlacementEngine
        from .priority_bitmap import PriorityBitmap
        from .rank_heap import RankHeap
        from .timer_wheel import TimerWheel

        COMPILED = True
    except ModuleNotFoundError:
        from .reference.delta_merge import DeltaMerge, checked_pairs
        from .reference.dotted_parts import ContextParts, DottedParts
        from .reference.forecast import Forecast
        from .reference.memory_pool import Block, Blocks, Defragmentation, MemoryPool, Move
        from .reference.message_ring import MessageRing
        from .reference.placement import PlacementEngine
        from .reference.priority_bitmap import PriorityBitmap
        from .reference.rank_heap import RankHeap
        from .reference.timer_wheel import TimerWheel

        COMPILED = False

__all__ = [
    "COMPILED",
    "Block",
    "Blocks",
    "ContextParts",
    "Defragmentation",
    "DeltaMerge",
    "DottedParts",
    "Forecast",
    "LatencyWindow",
    "MemoryPool",
    "MessageRing",
    "Move",
    "NodeView",
    "Placement",
    "PlacementEngine",
    "PoolStats",
    "PriorityBitmap",
    "RankHeap",
    "Segment",
    "TimerWheel",
    "TypicalTask",
    "checked_pairs",
    "vendor_alignment_bytes",
]
