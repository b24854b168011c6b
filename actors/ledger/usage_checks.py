"""What makes a record of usage well formed that comes within a command."""

from typing import Any

from .field_checks import Check, is_number, is_truth, or_none

MODELS_MAX = 64
TEXT_MAX = 300
"""Of a model's name, and of a reason."""


def _amount(value: Any) -> bool:
    return is_number(value) and 0 <= value < 2**53


def _by_model(value: Any) -> bool:
    return _short(value, _amount)


def _reasons(value: Any) -> bool:
    return _short(value, lambda text: isinstance(text, str) and len(text) <= TEXT_MAX)


def _short(value: Any, check: Check) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= MODELS_MAX
        and all(isinstance(name, str) and len(name) <= TEXT_MAX and check(each) for name, each in value.items())
    )


_USAGE: dict[str, Check] = {
    "held_s": _amount,
    "gpu_s": _amount,
    "models": _by_model,
    "memory_mib_s": or_none(_amount),
    "memory_high_mib": or_none(_amount),
    "energy_j": or_none(_amount),
    "energy_estimated_s": _amount,
    "unsampled_s": _amount,
    "simulated": is_truth,
    "unsupported": _reasons,
}


def is_usage(value: Any) -> bool:
    """Whether *value* is a UsageRecord, with no field more."""
    return (
        isinstance(value, dict)
        and value.keys() == _USAGE.keys()
        and all(check(value[name]) for name, check in _USAGE.items())
    )
