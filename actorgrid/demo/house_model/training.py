"""Teach the house's language model: ``python -m actorgrid.demo.house_model.training docs weights.npz``.

With the same documentation, seed and NumPy it comes to the same weights; about a quarter of an hour on one core.
"""

from __future__ import annotations

import argparse
import logging
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from .docs_text import lessons, pages, sections
from .learning import Adam, loss_and_gradients, new_weights
from .network import NetworkShape, NetworkState, forward
from .weights_file import LearnedModel, save

if TYPE_CHECKING:
    from .network import Bytes, Weights

LOG = logging.getLogger(__name__)
BITS = 1 / math.log(2)


@dataclass(frozen=True, slots=True)
class Course:
    """How it is taught: *epochs* over all lessons, in *streams* at once, *span* bytes between two changes of the
    weights, at most at *rate*; every *held_out*-th part of the documentation is kept from it, to measure by."""

    epochs: int = 16
    streams: int = 32
    span: int = 128
    rate: float = 3e-3
    seed: int = 18
    held_out: int = 25


def teach(shape: NetworkShape, parts: Sequence[tuple[str, str]], course: Course) -> LearnedModel:
    """A network that has gone through the course over *parts*, (heading, text) each."""
    learned = [part for number, part in enumerate(parts) if number % course.held_out]
    measured = [part for number, part in enumerate(parts) if not number % course.held_out]
    dice = random.Random(course.seed)
    weights = new_weights(shape, course.seed)
    adam = Adam(weights)
    steps = course.epochs * max(1, sum(1 for _ in _spans(lessons(learned, random.Random(0)), course)))
    began, mean, step = time.monotonic(), 0.0, 0
    for epoch in range(course.epochs):
        state = NetworkState.empty(shape, course.streams)
        for tokens, following in _spans(lessons(learned, dice), course):
            rate = course.rate * min(1.0, (step + 1) / 50) * (0.02 + 0.98 * _fallen(step / steps))
            loss, gradients, state = loss_and_gradients(shape, weights, state, tokens, following)
            adam.step(gradients, rate)
            mean = loss if not step else mean + 0.05 * (loss - mean)
            step += 1
        LOG.info("epoch %d: %.3f bits a byte, after %.0f s", epoch + 1, mean * BITS, time.monotonic() - began)
    unseen = bits_a_byte(shape, weights, lessons(measured, random.Random(1)))
    digest = blake2b(repr(parts).encode(), digest_size=8).hexdigest()
    about = (
        f"learned from {len(learned)} parts of the documentation (digest {digest}), seed {course.seed},"
        f" {course.epochs} epochs: {mean * BITS:.3f} bits a byte, {unseen:.3f} of {len(measured)} parts it had not seen"
    )
    return LearnedModel(shape, weights, about)


def bits_a_byte(shape: NetworkShape, weights: Weights, text: bytes) -> float:
    """How many bits a byte of *text* takes by the network's odds: 8 without any knowledge."""
    import numpy as np

    tokens = np.frombuffer(text, np.uint8)[:, None]
    state, total = NetworkState.empty(shape), 0.0
    for first in range(0, len(tokens) - 1, 512):
        part, following = tokens[first : first + 512], tokens[first + 1 : first + 513]
        _, logits, state = forward(shape, weights, state, part)
        logits = logits[: len(following), 0].astype(np.float64)
        logits -= logits.max(-1, keepdims=True)
        chosen = logits[np.arange(len(following)), following[:, 0]]
        total += float(np.sum(np.log(np.exp(logits).sum(-1)) - chosen))
    return total / max(1, len(tokens) - 1) * BITS


def _spans(text: bytes, course: Course) -> Iterator[tuple[Bytes, Bytes]]:
    """The text in streams side by side: bytes (span, streams), and those that follow each of them."""
    import numpy as np

    each = (len(text) - 1) // course.streams
    whole = np.frombuffer(text, np.uint8)
    now = whole[: each * course.streams].reshape(course.streams, each).T
    following = whole[1 : each * course.streams + 1].reshape(course.streams, each).T
    for first in range(0, each, course.span):
        yield np.ascontiguousarray(now[first : first + course.span]), following[first : first + course.span]


def _fallen(done: float) -> float:
    """Half a cosine, from 1 at 0 to 0 at 1."""
    return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


def main() -> None:
    """Read the documentation, teach, and write the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("docs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--epochs", type=int, default=Course().epochs)
    parser.add_argument("--seed", type=int, default=Course().seed)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parts = [part for page in pages(given.docs) for part in sections(page.read_text(encoding="utf-8"))]
    model = teach(NetworkShape(), parts, Course(epochs=given.epochs, seed=given.seed))
    save(given.out, model)
    LOG.info("%s: %s, %d bytes", given.out, model.about, given.out.stat().st_size)


if __name__ == "__main__":
    main()
