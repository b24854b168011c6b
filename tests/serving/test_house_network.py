"""The house's network: its gradients, its states, and that it learns."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from actorgrid.demo.house_model.docs_text import lessons, pages, prose, sections
from actorgrid.demo.house_model.learning import loss_and_gradients, new_weights
from actorgrid.demo.house_model.network import NetworkShape, NetworkState, forward
from actorgrid.demo.house_model.training import Course, bits_a_byte, teach
from actorgrid.demo.house_model.weights_file import SHIPPED, load, save
from actorgrid.errors import StorageError

ROOT = Path(__file__).resolve().parents[2]
TINY = NetworkShape(width=8, memory=6, inner=10, layers=2, hashed=16)


def letters(seed: int, *size: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(97, 101, size).astype(np.uint8)


def test_gradients_are_those_of_finite_differences() -> None:
    dice = np.random.default_rng(3)
    weights = {
        name: each.astype(np.float64) + 0.1 * dice.standard_normal(each.shape)
        for name, each in new_weights(TINY, 1).items()
    }
    state = NetworkState.empty(TINY, 3)
    state.memory += dice.standard_normal(state.memory.shape).astype(np.float32)
    tokens, following = letters(1, 7, 3), letters(2, 7, 3)

    def loss() -> float:
        return loss_and_gradients(TINY, weights, state, tokens, following)[0]

    _, gradients, _ = loss_and_gradients(TINY, weights, state, tokens, following)
    assert gradients.keys() == weights.keys() == TINY.names().keys()
    for name, gradient in gradients.items():
        for flat in np.argsort(-np.abs(gradient), axis=None)[:2]:
            place = np.unravel_index(flat, gradient.shape)
            was, step = weights[name][place], 1e-3
            weights[name][place] = was + step
            above = loss()
            weights[name][place] = was - step
            below = loss()
            weights[name][place] = was
            assert (above - below) / (2 * step) == pytest.approx(gradient[place], rel=5e-3, abs=3e-4), name


def test_a_text_may_be_read_in_any_parts_and_beside_any_others() -> None:
    weights = new_weights(TINY, 0)
    text = letters(4, 20, 2)
    hidden, logits, after = forward(TINY, weights, NetworkState.empty(TINY, 2), text)
    for cut in (1, 3, 19):
        first_hidden, _, between = forward(TINY, weights, NetworkState.empty(TINY, 2), text[:cut])
        rest_hidden, rest, ended = forward(TINY, weights, between, text[cut:])
        np.testing.assert_allclose(np.concatenate([first_hidden, rest_hidden]), hidden, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(rest, logits[cut:], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(ended.memory, after.memory, rtol=1e-4, atol=1e-5)
    states = [forward(TINY, weights, NetworkState.empty(TINY), text[:5, each : each + 1])[2] for each in (0, 1)]
    _, together, both = forward(TINY, weights, NetworkState.joined(states), text[5:])
    np.testing.assert_allclose(together, logits[5:], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(both.of(1).memory, after.of(1).memory, rtol=1e-4, atol=1e-5)


def test_a_tiny_one_learns_and_twice_the_same(tmp_path: Path) -> None:
    shape = NetworkShape(width=24, memory=24, inner=32, layers=1, hashed=64)
    parts = [(f"lock {number % 7}", "a lock of the cluster has one holder at a time. " * 3) for number in range(40)]
    course = Course(epochs=2, streams=4, span=32, seed=5)
    text = lessons(parts, random.Random(9))
    before = bits_a_byte(shape, new_weights(shape, 5), text)
    first, second = teach(shape, parts, course), teach(shape, parts, course)
    after = bits_a_byte(shape, first.weights, text)
    assert before > 6
    assert after < 3
    assert all(np.array_equal(first.weights[name], second.weights[name]) for name in first.weights)
    save(tmp_path / "weights.npz", first)
    read = load(tmp_path / "weights.npz")
    assert read.shape == shape
    assert "licence: Apache-2.0" in read.about and "seed 5" in read.about
    assert bits_a_byte(shape, read.weights, text) == pytest.approx(after, abs=0.02)


def test_the_shipped_weights_know_the_documentation() -> None:
    assert SHIPPED.stat().st_size <= 2 * 1024 * 1024
    model = load()
    assert model.shape == NetworkShape() and "licence: Apache-2.0" in model.about
    text = "Locks and semaphores. A lock of the cluster has one holder at a time, a semaphore as many as it has slots."
    assert bits_a_byte(model.shape, model.weights, text.encode()) < 2
    noise = bytes(np.random.default_rng(0).integers(32, 127, 200).astype(np.uint8))
    assert bits_a_byte(model.shape, model.weights, noise) > 6


@pytest.mark.parametrize("damage", [b"", b"not an archive", b"PK\x03\x04 and then nothing"])
def test_damaged_weights_are_named(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "weights.npz"
    path.write_bytes(damage)
    with pytest.raises(StorageError, match="no weights of the house's model"):
        load(path)


def test_prose_is_left_of_a_page() -> None:
    page = (
        "# Locks\n\nA [lock](x.md) has\none holder.\n\n```sh\nrun\n```\n\n| a | b |\n\n## Short\n\nno\n\n## Leases\n\n"
        + "Long enough. " * 9
    )
    assert prose(page).startswith("# Locks\n\nA lock has one holder.\n\n")
    assert "run" not in prose(page) and "|" not in prose(page)
    assert [heading for heading, _ in sections(page)] == ["Leases"]
    found = [part for each in pages(ROOT / "docs") for part in sections(each.read_text(encoding="utf-8"))]
    assert len(found) > 300
