"""The file of the weights: 16-bit floats, with what they were learned from and their licence."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

from actorgrid.errors import StorageError

from .network import NetworkShape

if TYPE_CHECKING:
    from .network import Weights

SHIPPED = Path(__file__).with_name("weights.npz")
LICENCE = "Apache-2.0, as the documentation that it was learned from, and as all of actorgrid"
_ABOUT = "about"


@dataclass(frozen=True, slots=True)
class LearnedModel:
    """A network that has learned."""

    shape: NetworkShape
    weights: Weights
    about: str
    """Licence, what it learned from, and how well: a line of text."""


def save(path: Path, model: LearnedModel) -> None:
    """Write it to *path*."""
    import numpy as np

    arrays = {name: weight.astype(np.float16) for name, weight in model.weights.items()}
    sizes = {f"shape.{name}": np.int64(size) for name, size in asdict(model.shape).items()}
    written: dict[str, Any] = {**arrays, **sizes, _ABOUT: np.str_(f"licence: {LICENCE}; {model.about}")}
    np.savez_compressed(path, **written)


def load(path: Path = SHIPPED) -> LearnedModel:
    """Read it. Raises StorageError where the file is not one of these."""
    import numpy as np

    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            shape = NetworkShape(**{name: int(file[f"shape.{name}"]) for name in asdict(NetworkShape())})
            weights = {name: file[name].astype(np.float32) for name in shape.names()}
            about = str(file[_ABOUT])
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise StorageError(
            f"these are no weights of the house's model: {error}", asked=str(path), hint="install actorgrid again"
        ) from error
    wrong = [name for name, size in shape.names().items() if weights[name].shape != size]
    if wrong:
        raise StorageError("arrays of the weights have other sizes than they say", asked=str(path), found=wrong[0])
    return LearnedModel(shape, weights, about)
