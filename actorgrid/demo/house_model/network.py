"""The network of the house's language model: bytes in, the odds of the next byte out, with a state of fixed size.

Each layer is a small perceptron and a gated running mean ("minGRU": Feng et al. 2024, "Were RNNs All We Needed?", whose
gates do not look at the memory, so that all bytes of a prompt go through one matrix product), both on a residual path.
What comes in is the sum of tables for the last four bytes and for a hash of the last five, which is where most of the
spelling is kept.

Axes, everywhere: T time, B sequences, D width, H memory, V = 256 bytes. All numbers are 32-bit floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float32]
    Bytes: TypeAlias = NDArray[np.uint8]
    Weights: TypeAlias = dict[str, Floats]

SEEN = 4
"""Bytes before this one that a step looks at, besides its memory."""
VOCABULARY = 256
EPSILON = 1e-5
TABLES = 4


@dataclass(frozen=True, slots=True)
class NetworkShape:
    """How large it is: *width* D, *memory* H, *inner* of the perceptrons, *layers*, rows of the *hashed* table."""

    width: int = 160
    memory: int = 224
    inner: int = 320
    layers: int = 2
    hashed: int = 1024

    def names(self) -> dict[str, tuple[int, ...]]:
        """Each array of the weights, by its name, with its shape."""
        found: dict[str, tuple[int, ...]] = {f"table{back}": (VOCABULARY, self.width) for back in range(TABLES)}
        found["hashed"] = (self.hashed, self.width)
        for layer in range(self.layers + 1):
            found |= {
                f"{layer}.mlp.scale": (self.width,),
                f"{layer}.mlp.into": (self.width, self.inner),
                f"{layer}.mlp.out": (self.inner, self.width),
            }
        for layer in range(self.layers):
            found |= {
                f"{layer}.cell.scale": (self.width,),
                f"{layer}.cell.now": (self.width,),
                f"{layer}.cell.before": (self.width,),
                f"{layer}.cell.into": (self.width, 3 * self.memory),
                f"{layer}.cell.bias": (3 * self.memory,),
                f"{layer}.cell.out": (self.memory, self.width),
            }
        return found | {
            "head.scale": (self.width,),
            "head.out": (self.width, VOCABULARY),
            "head.bias": (VOCABULARY,),
        }


@dataclass(slots=True)
class NetworkState:
    """What the network knows of B sequences: the last bytes (SEEN, B), memories (L, B, H), inputs before (L, B, D)."""

    last: Bytes
    memory: Floats
    before: Floats

    @classmethod
    def empty(cls, shape: NetworkShape, sequences: int = 1) -> NetworkState:
        """The state before the first byte."""
        import numpy as np

        return cls(
            np.zeros((SEEN, sequences), np.uint8),
            np.zeros((shape.layers, sequences, shape.memory), np.float32),
            np.zeros((shape.layers, sequences, shape.width), np.float32),
        )

    @classmethod
    def joined(cls, states: Sequence[NetworkState]) -> NetworkState:
        """One state of all their sequences."""
        import numpy as np

        return cls(
            np.concatenate([each.last for each in states], 1),
            np.concatenate([each.memory for each in states], 1),
            np.concatenate([each.before for each in states], 1),
        )

    def of(self, sequence: int) -> NetworkState:
        """The state of one of the sequences, as a copy."""
        part = slice(sequence, sequence + 1)
        return NetworkState(self.last[:, part].copy(), self.memory[:, part].copy(), self.before[:, part].copy())

    @property
    def size_bytes(self) -> int:
        """What it takes in memory."""
        return int(self.last.nbytes + self.memory.nbytes + self.before.nbytes)


@dataclass(slots=True)
class Tape:
    """What the pass backwards needs of one forwards: arrays by name."""

    kept: dict[str, Any] = field(default_factory=dict)


def forward(
    shape: NetworkShape, weights: Weights, state: NetworkState, tokens: Bytes, tape: Tape | None = None
) -> tuple[Floats, Floats, NetworkState]:
    """Take *tokens* (T, B) in: hidden values (T, B, D), unnormalised log odds (T, B, V), and the state after them."""
    import numpy as np

    steps = len(tokens)
    seen = np.concatenate([state.last, tokens])
    rows = _hashes(seen, steps, shape.hashed)
    x = weights["hashed"][rows]
    for back in range(TABLES):
        x += weights[f"table{back}"][seen[SEEN - back : SEEN - back + steps]]
    if tape is not None:
        tape.kept |= {"seen": seen, "rows": rows}
    memory, before = np.empty_like(state.memory), np.empty_like(state.before)
    for layer in range(shape.layers + 1):
        x = x + _perceptron(weights, layer, x, tape)
        if layer < shape.layers:
            added, memory[layer], before[layer] = _cell(
                weights, layer, x, state.memory[layer], state.before[layer], tape
            )
            x = x + added
    unit, inverse = normed(x)
    hidden = unit * weights["head.scale"]
    logits = hidden.reshape(-1, shape.width) @ weights["head.out"] + weights["head.bias"]
    if tape is not None:
        tape.kept |= {"head.unit": unit, "head.inverse": inverse, "head.hidden": hidden}
    after = NetworkState(seen[-SEEN:].copy(), memory, before)
    return hidden, logits.reshape(*tokens.shape, VOCABULARY), after


def normed(x: Floats) -> tuple[Floats, Floats]:
    """*x* with a root mean square of 1 along D, and what it was multiplied by."""
    import numpy as np

    inverse = 1 / np.sqrt(np.mean(x * x, -1, keepdims=True) + np.float32(EPSILON))
    return x * inverse, inverse


def sigmoid(x: Floats) -> Floats:
    """The logistic function; of very small numbers 0, without a warning."""
    import numpy as np

    return 1 / (1 + np.exp(np.minimum(-x, np.float32(60))))


def _hashes(seen: Bytes, steps: int, rows: int) -> Any:
    """The row of the hashed table for each step: of the bytes up to SEEN back."""
    import numpy as np

    found = np.zeros((steps, seen.shape[1]), np.uint32)
    for back in range(SEEN, -1, -1):
        found = (found ^ seen[SEEN - back : SEEN - back + steps]) * np.uint32(0x01000193) + np.uint32(0x9E37)
    return (found >> np.uint32(7)) % np.uint32(rows)


def _perceptron(weights: Weights, layer: int, x: Floats, tape: Tape | None) -> Floats:
    import numpy as np

    unit, inverse = normed(x)
    scaled = (unit * weights[f"{layer}.mlp.scale"]).reshape(-1, x.shape[-1])
    positive = np.maximum(scaled @ weights[f"{layer}.mlp.into"], 0)
    if tape is not None:
        tape.kept[f"{layer}.mlp"] = (unit, inverse, scaled, positive)
    return ((positive * positive) @ weights[f"{layer}.mlp.out"]).reshape(x.shape)


def _cell(
    weights: Weights, layer: int, x: Floats, memory: Floats, before: Floats, tape: Tape | None
) -> tuple[Floats, Floats, Floats]:
    """What the cell adds, and its memory (B, H) and input (B, D) after the last step."""
    import numpy as np

    name = f"{layer}.cell"
    unit, inverse = normed(x)
    scaled = unit * weights[f"{name}.scale"]
    earlier = np.concatenate([before[None], scaled[:-1]])
    mixed = scaled * weights[f"{name}.now"] + earlier * weights[f"{name}.before"]
    steps, sequences, width = x.shape
    three = mixed.reshape(-1, width) @ weights[f"{name}.into"] + weights[f"{name}.bias"]
    gate, candidate, opened = np.split(three.reshape(steps, sequences, -1), 3, -1)
    gate = sigmoid(gate)
    kept = np.empty((steps + 1, *memory.shape), np.float32)  # the memory before each step, and after the last
    kept[0] = memory
    for step in range(steps):
        kept[step + 1] = kept[step] + gate[step] * (candidate[step] - kept[step])
    sigma = sigmoid(opened)
    passed = opened * sigma
    out = (kept[1:] * passed).reshape(-1, kept.shape[-1]) @ weights[f"{name}.out"]
    if tape is not None:
        tape.kept[name] = (unit, inverse, scaled, earlier, mixed, gate, candidate, opened, sigma, kept, passed)
    return out.reshape(x.shape), kept[-1], scaled[-1]
