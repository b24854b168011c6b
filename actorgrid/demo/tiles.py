"""The demo's work: a zoom into the Mandelbrot set, rendered tile by tile, stitched and shown as one poster.

These functions run in workers; numpy, Pillow and torch load inside them. Arrays travel as bytes.
"""

from __future__ import annotations

import io
import itertools
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

CENTRE = (-0.743643887037151, 0.131825904205330)
"""A point of Seahorse Valley: it stays in the middle of every frame and stays interesting."""
FIRST_WIDTH = 3.6
FIRST_MIDDLE = -0.65
LAST_WIDTH = 2.6e-4
ESCAPE = 1e4
"""A large radius makes the smooth count really smooth."""
PALETTE = (
    (0.00, 6, 10, 48),
    (0.16, 22, 74, 168),
    (0.32, 76, 176, 232),
    (0.44, 240, 250, 255),
    (0.56, 255, 206, 92),
    (0.70, 226, 104, 30),
    (0.84, 96, 22, 66),
    (1.00, 6, 10, 48),
)
"""Colours around the cycle: night, sea, foam, sand, ember, wine, night."""
INSIDE = (4, 5, 16)


@dataclass(frozen=True)
class Frame:
    """One picture of the zoom: what it shows and how large it is."""

    number: int
    centre: tuple[float, float]
    width: float
    columns: int
    rows: int
    iterations: int
    samples: int
    """Points per pixel in each direction; what the picture shows is their mean colour."""


@dataclass(frozen=True)
class Tile:
    """A rectangle of pixels of a frame."""

    frame: Frame
    number: int
    left: int
    top: int
    columns: int
    rows: int


@dataclass(frozen=True)
class TileResult:
    """Rendered numbers of a tile: smooth counts (float32, -1 inside the set) and light (float32), and who did it."""

    tile: Tile
    counts: bytes
    light: bytes
    device: str
    pid: int
    seconds: float
    gpu_uuids: str


@dataclass(frozen=True)
class TilePicture:
    """A PNG and what was found on the way."""

    frame: int
    png: bytes
    columns: int
    rows: int
    distinct_colours: int
    pid: int
    seconds: float


def plan(frames: int, tiles: int, columns: int, rows: int) -> list[list[Tile]]:
    """The zoom as frames, each cut into *tiles* rectangles of near-equal size."""
    across = max(1, round(math.sqrt(tiles * columns / rows)))
    while tiles % across:
        across -= 1
    down = tiles // across
    plans = []
    for number in range(frames):
        step = number / (frames - 1) if frames > 1 else 1.0
        width = FIRST_WIDTH * (LAST_WIDTH / FIRST_WIDTH) ** step
        # The first frame shows the whole set; its middle glides to where the zoom ends as fast as the picture narrows.
        away = width / FIRST_WIDTH
        centre = (CENTRE[0] + (FIRST_MIDDLE - CENTRE[0]) * away, CENTRE[1] * (1 - away))
        frame = Frame(number, centre, width, columns, rows, round(160 + 700 * step), 2 if number == frames - 1 else 1)
        lefts = [columns * place // across for place in range(across + 1)]
        tops = [rows * place // down for place in range(down + 1)]
        cuts = [
            (left, top, right - left, bottom - top)
            for top, bottom in itertools.pairwise(tops)
            for left, right in itertools.pairwise(lefts)
        ]
        plans.append([Tile(frame, place, *cut) for place, cut in enumerate(cuts)])
    return plans


def render_tile(tile: Tile) -> TileResult:
    """Render on the GPU this worker may see, if torch finds one, else with numpy."""
    began = time.perf_counter()
    counts, light, device = _on_gpu(tile) or _with_numpy(tile)
    return TileResult(
        tile,
        counts,
        light,
        device,
        os.getpid(),
        time.perf_counter() - began,
        os.environ.get("ACTORGRID_DEVICES", ""),
    )


def stitch_frame(tiles: Sequence[TileResult]) -> TilePicture:
    """Put a frame's tiles together and colour them, the cycle laid over the range of counts in this frame."""
    import numpy as np

    began = time.perf_counter()
    frame = tiles[0].tile.frame
    fine = frame.samples
    counts: Any = np.empty((frame.rows * fine, frame.columns * fine), np.float32)
    light = np.empty_like(counts)
    filled = 0
    for result in tiles:
        tile = result.tile
        if tile.frame != frame:
            raise ValueError(f"tile {tile.number} is of frame {tile.frame.number}, not {frame.number}")
        shape = (tile.rows * fine, tile.columns * fine)
        place = (
            slice(tile.top * fine, (tile.top + tile.rows) * fine),
            slice(tile.left * fine, (tile.left + tile.columns) * fine),
        )
        counts[place] = np.frombuffer(result.counts, np.float32).reshape(shape)
        light[place] = np.frombuffer(result.light, np.float32).reshape(shape)
        filled += tile.rows * tile.columns
    if filled != frame.rows * frame.columns:
        raise ValueError(f"the tiles cover {filled} of {frame.rows * frame.columns} pixels")
    colours = _coloured(counts, light)
    if fine > 1:
        colours = colours.reshape(frame.rows, fine, frame.columns, fine, 3).mean(axis=(1, 3))
    pixels = np.clip(colours + 0.5, 0, 255).astype(np.uint8)
    return _picture(frame.number, pixels, began)


def make_poster(pictures: Sequence[TilePicture]) -> TilePicture:
    """The last frame large, the way there as a strip of small frames below it."""
    import numpy as np
    from PIL import Image

    began = time.perf_counter()
    last = pictures[-1]
    images = [Image.open(io.BytesIO(picture.png)) for picture in pictures]
    gap = max(4, last.columns // 120)
    shown = images if len(images) <= 8 else [images[place * (len(images) - 1) // 7] for place in range(8)]
    small = (last.columns - gap * (len(shown) - 1)) // len(shown)
    height = max(1, min(small * last.rows // last.columns, last.rows // 3)) if len(shown) > 1 else 0
    poster = Image.new("RGB", (last.columns + 2 * gap, last.rows + 2 * gap + (height + gap if height else 0)), INSIDE)
    poster.paste(images[-1], (gap, gap))
    if height:
        wide = min(small, height * last.columns // last.rows)
        spare = last.columns - wide * len(shown)
        for place, image in enumerate(shown):
            left = gap + place * wide + spare * place // (len(shown) - 1)
            poster.paste(image.resize((wide, height), Image.Resampling.LANCZOS), (left, last.rows + 2 * gap))
    return _picture(last.frame, np.asarray(poster), began)


def _picture(frame: int, pixels: Any, began: float) -> TilePicture:
    import numpy as np
    from PIL import Image

    rows, columns, _ = pixels.shape
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=4)
    packed = pixels.astype(np.uint32)
    distinct = int(np.unique(packed[..., 0] << 16 | packed[..., 1] << 8 | packed[..., 2]).size)
    return TilePicture(frame, file.getvalue(), columns, rows, distinct, os.getpid(), time.perf_counter() - began)


def _coloured(counts: Any, light: Any) -> Any:
    import numpy as np

    outside = counts >= 0
    colours = np.empty((*counts.shape, 3), np.float32)
    colours[:] = INSIDE
    if outside.any():
        found = np.log1p(counts[outside])
        low, high = np.percentile(found, (0.5, 99.5))
        around = 1.75 * (found - low) / max(1e-6, float(high - low)) + 0.06
        around -= np.floor(around)
        stops = np.array(PALETTE, np.float32)
        shade = light[outside][:, None]
        tint = np.stack([np.interp(around, stops[:, 0], stops[:, channel]) for channel in (1, 2, 3)], axis=1)
        # Light from the upper left: below 1 darkens towards night, above 1 leans towards white.
        lit = tint * np.minimum(shade, 1.0) + (255.0 - tint) * np.maximum(shade - 1.0, 0.0)
        colours[outside] = lit
    return np.clip(colours, 0, 255)


def _points(tile: Tile, numbers: Any) -> tuple[Any, Any]:
    """Real and imaginary parts of the tile's pixels; *numbers* is numpy."""
    frame = tile.frame
    fine = frame.samples
    step = frame.width / (frame.columns * fine)
    across = numbers.arange(tile.left * fine, (tile.left + tile.columns) * fine)
    down = numbers.arange(tile.top * fine, (tile.top + tile.rows) * fine)
    x = frame.centre[0] + (across - (frame.columns * fine - 1) / 2) * step
    y = frame.centre[1] - (down - (frame.rows * fine - 1) / 2) * step
    return x, y


def _with_numpy(tile: Tile) -> tuple[bytes, bytes, str]:
    import numpy as np

    x, y = _points(tile, np)
    c = (x[None, :] + 1j * y[:, None]).ravel()
    counts = np.full(c.size, -1.0, np.float32)
    light = np.ones(c.size, np.float32)
    # The main cardioid and the disc beside it never escape.
    q = (c.real - 0.25) ** 2 + c.imag**2
    alive = np.flatnonzero((q * (q + c.real - 0.25) > 0.25 * c.imag**2) & ((c.real + 1) ** 2 + c.imag**2 > 0.0625))
    c = c[alive]
    z = c.copy()
    slope = np.ones_like(c)
    for count in range(1, tile.frame.iterations + 1):
        size = z.real * z.real + z.imag * z.imag
        gone = size > ESCAPE * ESCAPE
        if gone.any():
            where = alive[gone]
            counts[where] = count + 1 - np.log2(np.log(size[gone]) / 2)
            light[where] = _lit(z[gone] / slope[gone], np)
            stay = ~gone
            alive, c, z, slope = alive[stay], c[stay], z[stay], slope[stay]
            if not alive.size:
                break
        slope *= z
        slope += slope
        slope += 1
        z *= z
        z += c
    return np.maximum(counts, -1).tobytes(), light.tobytes(), "numpy"


def _lit(normal: Any, numbers: Any) -> Any:
    """Brightness of the surface whose level lines the counts are: Lambert's law with a low sun, 0.55 to 1.25."""
    length = numbers.maximum(abs(normal), 1e-300)
    facing = (normal.real * -0.7071 + normal.imag * 0.7071) / length
    height = 1.4
    return (0.52 + 0.72 * numbers.clip((facing + height) / (1 + height), 0, 1)).astype("float32")


def _on_gpu(tile: Tile) -> tuple[bytes, bytes, str] | None:
    """The same on the first device this process sees; ``None`` without torch or without a device."""
    try:
        import torch
    except ModuleNotFoundError:
        return None
    if not torch.cuda.is_available():
        return None
    counts, light = with_torch(tile, "cuda")
    return counts, light, f"torch, {torch.cuda.get_device_name(0)}"


def with_torch(tile: Tile, device: str) -> tuple[bytes, bytes]:
    """Counts and light, computed by torch on *device*: every point in every step, which is what GPUs are good at."""
    import numpy as np
    import torch

    x, y = _points(tile, np)
    c = torch.complex(torch.from_numpy(np.tile(x, (len(y), 1))), torch.from_numpy(np.tile(y[:, None], (1, len(x))))).to(
        device
    )
    z, slope, normal = c.clone(), torch.ones_like(c), torch.ones_like(c)
    counts = torch.full(c.shape, -1.0, dtype=torch.float64, device=device)
    alive = torch.ones(c.shape, dtype=torch.bool, device=device)
    for count in range(1, tile.frame.iterations + 1):
        size = z.real**2 + z.imag**2
        gone = alive & (size > ESCAPE * ESCAPE)
        counts = torch.where(gone, count + 1 - torch.log2(torch.log(size) / 2), counts)
        normal = torch.where(gone, z / slope, normal)
        alive = alive & ~gone
        slope = torch.where(alive, 2 * slope * z + 1, slope)
        z = torch.where(alive, z * z + c, z)
        # Asking stops the pipeline, so it is asked now and then only.
        if count % 32 == 0 and not bool(alive.any()):
            break
    found = counts.cpu().numpy()
    light = np.where(found >= 0, _lit(normal.cpu().numpy(), np), np.float32(1)).astype(np.float32)
    return np.maximum(found, -1).astype(np.float32).tobytes(), light.tobytes()
