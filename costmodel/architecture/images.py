"""How a model's processor turns an image into patches, and patches into tokens of the prompt. One rule for each way of doing it.

Every rule takes an image's width and height in pixels and says what becomes of it. The rules follow the image processors of Hugging Face
transformers (``image_processing_<model_type>.py`` and ``processing_<model_type>.py``, 5.19), which vLLM calls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from costmodel.hardware.errors import InputError

MAX_SIDE = 100_000
"""Pixels of a side beyond which an image is refused."""
MAX_RATIO = 200
"""Ratio of its sides beyond which Qwen's processors refuse an image."""


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """What becomes of one image.

    Attributes:
        width, height: after resizing, all tiles but the overview together [pixels].
        sequences: patches that see one another, for each tile; a class token counts as one.
        features: rows that pass the projector, and so tokens of the prompt that stand for patches.
        tokens: of the prompt, with the tokens that the processor sets around and between those.
        windowed_pairs: (query, key) pairs of a layer whose patches see only their window.
    """

    width: int
    height: int
    sequences: tuple[int, ...]
    features: int
    tokens: int
    windowed_pairs: int = 0

    @property
    def patches(self) -> int:
        """Rows of the encoder's layers."""
        return sum(self.sequences)

    @property
    def pairs(self) -> int:
        """(query, key) pairs of a layer in which patches see all of their tile: Σ p²; attention is bidirectional."""
        return sum(patches**2 for patches in self.sequences)


class ImageRule(Protocol):
    """A rule: what becomes of an image of so many pixels."""

    def __call__(self, width: int, height: int) -> EncodedImage:
        """Return what becomes of one image."""


@dataclass(frozen=True, slots=True)
class FixedImage:
    """Every image is resized to a square of ``side`` pixels: CLIP in LLaVA 1.5, SigLIP in PaliGemma and Gemma 3.

    Attributes:
        side, patch: [pixels].
        features: after pooling; all patches without.
        markers: tokens around them.
        class_tokens: rows of the encoder that stand for no patch.
    """

    side: int
    patch: int
    features: int
    markers: int = 0
    class_tokens: int = 0

    def __call__(self, width: int, height: int) -> EncodedImage:
        """Return ⌊side/patch⌋² patches, whatever the image."""
        rows = (self.side // self.patch) ** 2 + self.class_tokens
        return EncodedImage(self.side, self.side, (rows,), self.features, self.features + self.markers)


@dataclass(frozen=True, slots=True)
class DynamicImage:
    """Qwen2-VL to Qwen3.5: sides are rounded to multiples of patch·merge, and the area is kept within bounds (``smart_resize``).

    Attributes:
        patch, merge: merge² patches make one token.
        least, most: area [pixels].
        window: merged patches along a side of an attention window (Qwen2.5-VL); 0 for none.
    """

    patch: int
    merge: int
    least: int
    most: int
    window: int = 0

    def __call__(self, width: int, height: int) -> EncodedImage:
        """Return (H/patch)·(W/patch) patches, (H/(patch·merge))·(W/(patch·merge)) tokens, and a token before and after them."""
        if max(width, height) > MAX_RATIO * min(width, height):
            raise InputError(
                f"image-size {width}x{height}: this model's processor refuses sides that differ by more than {MAX_RATIO} times"
            )
        step = self.patch * self.merge
        rows, columns = round(height / step), round(width / step)
        if rows * columns * step**2 > self.most:
            shrink = math.sqrt(height * width / self.most)
            rows, columns = (max(1, math.floor(side / shrink / step)) for side in (height, width))
        elif rows * columns * step**2 < self.least:
            grow = math.sqrt(self.least / (height * width))
            rows, columns = (math.ceil(side * grow / step) for side in (height, width))
        features, each = rows * columns, self.merge**2
        windowed = each**2 * _squares(rows, self.window) * _squares(columns, self.window) if self.window else 0
        return EncodedImage(columns * step, rows * step, (features * each,), features, features + 2, windowed)


def _squares(length: int, part: int) -> int:
    """Return Σ of the squares of a length's parts: whole ones, and what is left."""
    return length // part * part**2 + (length % part) ** 2


@dataclass(frozen=True, slots=True)
class LongestEdge:
    """Pixtral in Mistral Small 3: shrunk to a longest edge, sides rounded up to multiples of patch·merge, a token after every row."""

    patch: int
    merge: int
    longest: int

    def __call__(self, width: int, height: int) -> EncodedImage:
        """Return rows·columns of merged patches, and rows·(columns + 1) tokens: a break after every row, an end after the last."""
        ratio = max(height / self.longest, width / self.longest, 1.0)
        step = self.patch * self.merge
        rows, columns = ((max(math.floor(side / ratio), 1) - 1) // step + 1 for side in (height, width))
        features = rows * columns
        return EncodedImage(columns * step, rows * step, (features * self.merge**2,), features, rows * (columns + 1))


@dataclass(frozen=True, slots=True)
class PooledImage:
    """Gemma 4: the largest area of whole pooled patches that is within a number of tokens and keeps the ratio of the sides."""

    patch: int
    pooling: int
    most: int
    """Tokens of an image."""

    def __call__(self, width: int, height: int) -> EncodedImage:
        """Return pooling² patches for every token, and a token before and after them."""
        step = self.patch * self.pooling
        grow = math.sqrt(self.most * step**2 / (height * width))
        rows, columns = (math.floor(side * grow / step) for side in (height, width))
        if rows == 0:
            rows, columns = 1, min(width // height, self.most)
        elif columns == 0:
            rows, columns = min(height // width, self.most), 1
        features = rows * columns
        return EncodedImage(columns * step, rows * step, (features * self.pooling**2,), features, features + 2)


@dataclass(frozen=True, slots=True)
class TiledImage:
    """Llama 4: cut into up to ``most`` square tiles of the best-fitting grid, and an overview if there are several.

    Attributes:
        side, patch: of a tile [pixels].
        shuffle: patches along a side that make one token.
        most: tiles.
    """

    side: int
    patch: int
    shuffle: int
    most: int

    def __call__(self, width: int, height: int) -> EncodedImage:
        """Return a sequence per tile with its class token; tokens of every tile, separators, overview, begin and end.

        The grid is that which needs the least enlarging, or else the least shrinking, and of those the smallest (``get_best_fit``).
        """
        rows, columns = best_grid(width, height, self.side, self.most)
        tiles = rows * columns
        in_all = tiles + 1 if tiles > 1 else 1
        patches = (self.side // self.patch) ** 2
        each = patches // self.shuffle**2
        separators = tiles if tiles > 1 else 0  # columns − 1 within and one after every row
        sequences = (patches + 1,) * in_all
        tokens = in_all * each + separators + 3
        return EncodedImage(columns * self.side, rows * self.side, sequences, in_all * each, tokens)


@dataclass(frozen=True, slots=True)
class CrossTiles:
    """Llama 3.2 Vision: up to ``most`` tiles in the best-fitting grid; their features go to cross-attention, and one token to the prompt.

    The tower runs over ``most`` tiles, empty ones included, in one sequence; each tile is padded to a multiple of 8 patches
    (modeling_mllama.py).
    """

    side: int
    patch: int
    most: int

    def __call__(self, width: int, height: int) -> EncodedImage:
        """Return one sequence, and the patches of the tiles in use with their class tokens as features."""
        rows, columns = best_grid(width, height, self.side, self.most)
        each = (self.side // self.patch) ** 2 + 1
        padded = -(-each // 8) * 8
        return EncodedImage(columns * self.side, rows * self.side, (self.most * padded,), rows * columns * each, 1)


@dataclass(frozen=True, slots=True)
class WholeAndCrops:
    """Step 3 and later: the whole image in a square, and crops in smaller ones (``ImagePatcher`` of vLLM's processors/step3_vl.py).

    Attributes:
        side, crop, patch: of the square of the whole, of a crop's, of a patch [pixels].
        shrink: patches along a side that make one feature.
        longest: of an image's sides, beyond which it is shrunk first [pixels].
    """

    side: int
    crop: int
    patch: int
    shrink: int
    longest: int = 3024

    def __call__(self, width: int, height: int) -> EncodedImage:
        """Return a sequence for the whole and for each crop; tokens with begin and end, and one after every row of crops but the last.

        No crops of an image whose sides are below ``side`` and within a factor of 1.5.
        """
        if min(width, height) < 32 and max(width, height) > 4 * min(width, height):
            width = height = max(width, height)
        if (largest := max(width, height)) > self.longest:
            width, height = (int(size * self.longest / largest) for size in (width, height))
        window = self._window(max(width, height), max(min(width, height), 1))
        columns = rows = 0
        if window:
            columns, rows = (self._crops(size, window) for size in (width, height))
        whole, each = (self.side // self.patch) ** 2, (self.crop // self.patch) ** 2
        features = [patches // self.shrink**2 for patches in (whole, each)]
        crops = rows * columns
        tokens = features[0] + 2 + crops * (features[1] + 2) + max(rows - 1, 0)
        sequences = (whole, *(each,) * crops)
        return EncodedImage(self.side, self.side, sequences, features[0] + crops * features[1], tokens)

    def _window(self, long: int, short: int) -> int:
        if long < self.side:
            return short if long > 1.5 * short else 0
        return min(short, self.crop) if long > 4 * short else self.crop

    @staticmethod
    def _crops(size: int, window: int) -> int:
        """Return the crops along a side: whole windows, and one more if more than a fifth of one is left."""
        if size < window:
            return 1
        return size // window + (1 if size / window - size // window > 0.2 else 0)


@dataclass(frozen=True, slots=True)
class AudioWindow:
    """Whisper: 30 s of audio are so many frames of a spectrogram, whatever is in them, and half as many states."""

    states: int

    def __call__(self, width: int, height: int) -> EncodedImage:
        """Return one sequence; its states go to cross-attention, and no token to the prompt."""
        return EncodedImage(width, height, (self.states,), self.states, 0)


def best_grid(width: int, height: int, side: int, most: int) -> tuple[int, int]:
    """Return rows and columns of the grid of at most ``most`` tiles that fits an image best."""
    grids = [(rows, columns) for rows in range(1, most + 1) for columns in range(1, most // rows + 1)]
    scales = {grid: min(grid[0] * side / height, grid[1] * side / width) for grid in grids}
    enlarging = [scale for scale in scales.values() if scale >= 1]
    chosen = min(enlarging) if enlarging else max(scales.values())
    return min((grid for grid, scale in scales.items() if scale == chosen), key=lambda grid: grid[0] * grid[1])
