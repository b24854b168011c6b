"""The kernels of the gateway for models, compiled or not, as ``actorgrid.hotpath`` chooses. Only it loads them."""

import os
from typing import TYPE_CHECKING

from .reference.http_head import KINDS, NOT_PASSED, UsualAnswer, UsualHead
from .reference.json_members import JsonMember

if TYPE_CHECKING:
    from .reference.http_head import read_usual_answer, read_usual_head
    from .reference.json_members import json_members, opened

    REQUESTS_COMPILED: bool
elif os.environ.get("ACTORGRID_PURE_PYTHON") == "1":
    from .reference.http_head import read_usual_answer, read_usual_head
    from .reference.json_members import json_members, opened

    REQUESTS_COMPILED = False
else:
    try:
        from .http_head import read_usual_answer, read_usual_head
        from .json_members import json_members, opened

        REQUESTS_COMPILED = True
    except ModuleNotFoundError:
        from .reference.http_head import read_usual_answer, read_usual_head
        from .reference.json_members import json_members, opened

        REQUESTS_COMPILED = False

__all__ = [
    "KINDS",
    "NOT_PASSED",
    "REQUESTS_COMPILED",
    "JsonMember",
    "UsualAnswer",
    "UsualHead",
    "json_members",
    "opened",
    "read_usual_answer",
    "read_usual_head",
]
