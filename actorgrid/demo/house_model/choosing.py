"""Which byte comes next: temperature, top-p, penalties and dice, among the bytes that keep the text UTF-8."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actorgrid.serving.generation import Sampling

from .text_bytes import END, Utf8Progress

if TYPE_CHECKING:
    from .network import Floats

SHARPER = 0.7
"""At temperature 1 the odds are taken as at this one: a model this small spells better so."""
COLDEST = 1e-3
"""At temperatures below, the likeliest byte is taken."""


class ByteChooser:
    """Chooses the bytes of one answer. The same seed and odds give the same bytes."""

    def __init__(self, sampling: Sampling) -> None:
        import numpy as np

        self._sampling = sampling
        seed = None if sampling.seed is None else sampling.seed % 2**64
        self._dice = np.random.Generator(np.random.PCG64(seed))
        self._counts: Floats = np.zeros(256, np.float32)
        self._penalised = bool(sampling.presence_penalty or sampling.frequency_penalty)
        self._may_begin = np.array([_begins(byte) for byte in range(256)])
        self.progress = Utf8Progress()

    def choose(self, logits: Floats) -> int:
        """The next byte, or END, from log odds (256,)."""
        import numpy as np

        odds = logits.astype(np.float64)
        sampling = self._sampling
        if self._penalised:
            odds -= sampling.frequency_penalty * self._counts + sampling.presence_penalty * (self._counts > 0)
        if self.progress.inside:
            allowed = np.array([self.progress.allows(byte) for byte in range(256)])
        else:
            allowed = self._may_begin
        odds[~allowed] = -np.inf
        temperature = sampling.temperature * SHARPER
        if temperature < COLDEST:
            byte = int(odds.argmax())
        else:
            odds = np.exp((odds - odds.max()) / temperature)
            byte = self._drawn(odds / odds.sum(), sampling.top_p)
        self._counts[byte] += 1
        return byte

    def _drawn(self, odds: Floats, top_p: float) -> int:
        import numpy as np

        order = np.argsort(-odds, kind="stable")
        summed = np.cumsum(odds[order])
        kept = len(order) if top_p >= 1 else int(np.searchsorted(summed, top_p)) + 1
        kept = min(kept, int(np.count_nonzero(odds)))
        return int(
            order[min(int(np.searchsorted(summed[:kept], self._dice.random() * summed[kept - 1], "right")), kept - 1)]
        )


def _begins(byte: int) -> bool:
    """Whether a character, or the end, may begin with it. Of control characters, only new line and tab."""
    return byte in (END, 0x09, 0x0A) or 0x20 <= byte < 0x7F or 0xC2 <= byte <= 0xF4
