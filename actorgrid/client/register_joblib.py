"""``actorgrid.register_joblib()``: without joblib, it says what is missing."""

from __future__ import annotations

from actorgrid.errors import NotSupported


def register_joblib() -> None:
    """Make ``joblib.parallel_config(backend="actorgrid")`` known, for scikit-learn and whatever else uses joblib.

    The backend takes ``client=`` and options of tasks (``gpus=``, ``cpus=``, ``retries=``). Raises NotSupported where
    joblib is missing or older than 1.3.
    """
    try:
        from .joblib_backend import register
    except ImportError as error:
        raise NotSupported(
            "the backend needs joblib 1.3 or newer", found=str(error), hint="pip install 'actorgrid[joblib]'"
        ) from error
    register()
