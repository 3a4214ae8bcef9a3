"""How far models really use their context: published measurements, which a cost model cannot replace.

Source: Hsieh et al., "RULER: What's the Real Context Size of Your Long-Context Language Models?", COLM 2024, arXiv:2404.06654; scores
from the table of main results in the README of https://github.com/NVIDIA/RULER. 13 synthetic tasks (retrieval, tracing, aggregation,
questions); the effective length is the longest at which the score is above that of Llama-2-7B at 4k tokens, 85.6.
"""

from __future__ import annotations

from dataclasses import dataclass

SOURCE = "Hsieh et al., RULER, COLM 2024, arXiv:2404.06654 (scores: README of github.com/NVIDIA/RULER)"
LENGTHS = (4096, 8192, 16384, 32768, 65536, 131072)
"""Lengths that were measured [tokens]."""
THRESHOLD = 85.6
"""Score of Llama-2-7B at 4k tokens, above which a length counts as effective."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A model that was measured.

    Attributes:
        name: as published.
        ours: what names of that model begin with here; "" for models that are none of ours.
        claimed: context that the model claims [tokens].
        scores: at each of :data:`LENGTHS`.
    """

    name: str
    ours: str
    claimed: int
    scores: tuple[float, ...]

    @property
    def effective(self) -> int:
        """Longest length up to which every score is above the threshold; 0 if none is [tokens]."""
        reached = 0
        for length, score in zip(LENGTHS, self.scores, strict=True):
            if score <= THRESHOLD:
                break
            reached = length
        return reached


K = 1024
MEASURED = (
    Measured("Llama 3.1 (8B)", "Llama-3.1-8B", 128 * K, (95.5, 93.8, 91.6, 87.4, 84.7, 77.0)),
    Measured("Llama 3.1 (70B)", "Llama-3.1-70B", 128 * K, (96.5, 95.8, 95.4, 94.8, 88.4, 66.6)),
    Measured("Qwen2 (72B)", "Qwen2-72B", 128 * K, (96.9, 96.1, 94.9, 94.1, 79.8, 53.7)),
    Measured("GPT-4-1106-preview", "", 128 * K, (96.6, 96.3, 95.2, 93.2, 87.0, 81.2)),
    Measured("Command-R-plus (104B)", "Command-R-plus", 128 * K, (95.6, 95.2, 94.2, 92.0, 84.3, 63.1)),
    Measured("Phi-3-medium (14B)", "Phi-3-medium", 128 * K, (93.3, 93.2, 91.1, 86.8, 78.6, 46.1)),
    Measured("Mixtral-8x22B", "Mixtral-8x22B", 64 * K, (95.6, 94.9, 93.4, 90.9, 84.7, 31.7)),
    Measured("Yi (34B)", "Yi-34B", 200 * K, (93.3, 92.2, 91.3, 87.5, 83.2, 77.3)),
    Measured("GLM4 (9B)", "GLM-4-9B", 1024 * K, (94.7, 92.8, 92.1, 89.9, 86.7, 83.1)),
)


def measured_of(name: str) -> Measured | None:
    """Return the measurement of a model; None if it is not among them."""
    return next((item for item in MEASURED if item.ours and name.casefold().startswith(item.ours.casefold())), None)
