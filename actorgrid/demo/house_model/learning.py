"""How the house's language model learns: gradients by hand, Adam, and the text cut into streams."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .network import SEEN, TABLES, NetworkShape, NetworkState, Tape, forward

if TYPE_CHECKING:
    from .network import Bytes, Floats, Weights

CLIP = 1.0
"""The largest norm of all gradients together that is followed; longer ones are shortened to it."""
BETAS = (0.9, 0.98)
DECAY = 0.02
SMALL = 1e-8


def new_weights(shape: NetworkShape, seed: int) -> Weights:
    """Weights to begin with. Gates begin nearly shut, with spans of memory from 2 to about 250 bytes."""
    import numpy as np

    dice = np.random.default_rng(seed)
    found: Weights = {}
    for name, size in shape.names().items():
        kind = name.rpartition(".")[2]
        if kind in ("scale", "now"):
            found[name] = np.ones(size, np.float32)
        elif kind in ("bias", "before"):
            found[name] = np.zeros(size, np.float32)
        else:
            spread = 0.1 if len(size) == 2 and name.startswith(("table", "hashed")) else size[0] ** -0.5
            if name.endswith(".out") and not name.startswith("head"):
                spread *= 0.5
            found[name] = (dice.standard_normal(size) * spread).astype(np.float32)
    for layer in range(shape.layers):
        spans = np.geomspace(2, 250, shape.memory)
        found[f"{layer}.cell.bias"][: shape.memory] = -np.log(spans - 1)
    return found


def loss_and_gradients(
    shape: NetworkShape, weights: Weights, state: NetworkState, tokens: Bytes, following: Bytes
) -> tuple[float, Weights, NetworkState]:
    """The mean loss in nats a byte over (T, B), its gradients, and the state after these bytes."""
    import numpy as np

    tape = Tape()
    _, logits, after = forward(shape, weights, state, tokens, tape)
    count = tokens.size
    flat = logits.reshape(count, -1)
    flat = flat - flat.max(-1, keepdims=True)
    odds = np.exp(flat)
    total = odds.sum(-1, keepdims=True)
    targets = following.reshape(-1)
    each = np.arange(count)
    loss = float(np.mean(np.log(total[:, 0]) - flat[each, targets]))
    odds /= total
    odds[each, targets] -= 1
    odds /= np.float32(count)
    return loss, _backward(shape, weights, tape.kept, odds), after


def _backward(shape: NetworkShape, weights: Weights, kept: dict[str, Any], toward: Floats) -> Weights:
    import numpy as np

    found: Weights = {}
    hidden = kept["head.hidden"]
    width = shape.width
    found["head.out"] = hidden.reshape(-1, width).T @ toward
    found["head.bias"] = toward.sum(0)
    back = (toward @ weights["head.out"].T).reshape(hidden.shape)
    dx = _norm_back(found, weights, "head", kept["head.unit"], kept["head.inverse"], back)
    for layer in range(shape.layers, -1, -1):
        if layer < shape.layers:
            dx = dx + _cell_back(found, weights, f"{layer}.cell", kept[f"{layer}.cell"], dx)
        dx = dx + _perceptron_back(found, weights, f"{layer}.mlp", kept[f"{layer}.mlp"], dx)
    seen, flat = kept["seen"], dx.reshape(-1, width)
    steps = len(dx)
    for offset in range(TABLES):
        found[f"table{offset}"] = np.zeros_like(weights[f"table{offset}"])
        np.add.at(found[f"table{offset}"], seen[SEEN - offset : SEEN - offset + steps].reshape(-1), flat)
    found["hashed"] = np.zeros_like(weights["hashed"])
    np.add.at(found["hashed"], kept["rows"].reshape(-1), flat)
    return found


def _norm_back(found: Weights, weights: Weights, name: str, unit: Floats, inverse: Floats, back: Floats) -> Floats:
    import numpy as np

    found[f"{name}.scale"] = (back * unit).reshape(-1, unit.shape[-1]).sum(0)
    inner = back * weights[f"{name}.scale"]
    return inverse * (inner - unit * np.mean(inner * unit, -1, keepdims=True))


def _perceptron_back(found: Weights, weights: Weights, name: str, kept: Any, dx: Floats) -> Floats:
    unit, inverse, scaled, positive = kept
    flat = dx.reshape(-1, dx.shape[-1])
    found[f"{name}.out"] = (positive * positive).T @ flat
    inner = (flat @ weights[f"{name}.out"].T) * (2 * positive)
    found[f"{name}.into"] = scaled.T @ inner
    back = (inner @ weights[f"{name}.into"].T).reshape(dx.shape)
    return _norm_back(found, weights, name, unit, inverse, back)


def _cell_back(found: Weights, weights: Weights, name: str, kept: Any, dx: Floats) -> Floats:
    import numpy as np

    unit, inverse, scaled, earlier, mixed, gate, candidate, opened, sigma, memories, passed = kept
    former, memory = memories[:-1], memories[1:]
    width, wide = dx.shape[-1], memory.shape[-1]
    flat = dx.reshape(-1, width)
    found[f"{name}.out"] = (memory * passed).reshape(-1, wide).T @ flat
    product = (flat @ weights[f"{name}.out"].T).reshape(memory.shape)
    three = np.empty((*gate.shape[:2], 3 * wide), np.float32)
    three[..., 2 * wide :] = product * memory * sigma * (1 + opened * (1 - sigma))
    direct = product * passed
    carried = np.zeros_like(direct[0])
    stays = 1 - gate
    whole = direct  # its steps become the gradients of the memory, from the last to the first
    for step in range(len(direct) - 1, -1, -1):
        carried = direct[step] + carried
        whole[step] = carried
        carried = carried * stays[step]
    three[..., :wide] = whole * (candidate - former) * gate * stays
    three[..., wide : 2 * wide] = whole * gate
    rows = three.reshape(-1, 3 * wide)
    found[f"{name}.into"] = mixed.reshape(-1, width).T @ rows
    found[f"{name}.bias"] = rows.sum(0)
    back = (rows @ weights[f"{name}.into"].T).reshape(dx.shape)
    found[f"{name}.now"] = (back * scaled).reshape(-1, width).sum(0)
    found[f"{name}.before"] = (back * earlier).reshape(-1, width).sum(0)
    to_scaled = back * weights[f"{name}.now"]
    to_scaled[:-1] += back[1:] * weights[f"{name}.before"]
    return _norm_back(found, weights, name, unit, inverse, to_scaled)


@dataclass(slots=True)
class Adam:
    """Adam with decoupled decay of the matrices (Loshchilov and Hutter 2019)."""

    weights: Weights
    steps: int = 0
    means: Weights = field(default_factory=dict)
    squares: Weights = field(default_factory=dict)

    def step(self, gradients: Weights, rate: float) -> None:
        """Change the weights in place."""
        import numpy as np

        self.steps += 1
        norm = float(np.sqrt(sum(float(np.vdot(each, each)) for each in gradients.values())))
        shortened = np.float32(min(1.0, CLIP / (norm + SMALL)))
        first, second = (1 - beta**self.steps for beta in BETAS)
        for name, gradient in gradients.items():
            gradient = gradient * shortened
            mean = self.means.setdefault(name, np.zeros_like(gradient))
            square = self.squares.setdefault(name, np.zeros_like(gradient))
            mean += np.float32(1 - BETAS[0]) * (gradient - mean)
            square += np.float32(1 - BETAS[1]) * (gradient * gradient - square)
            weight = self.weights[name]
            change = (mean / np.float32(first)) / (np.sqrt(square / np.float32(second)) + np.float32(SMALL))
            if weight.ndim == 2:
                change += np.float32(DECAY) * weight
            weight -= np.float32(rate) * change
