"""How far models really use their context: published measurements, which a cost model cannot replace.

Source: Hsieh et al., "RULER: What's the Real Context Size of Your Long-Context Language Models?", COLM 2024, arXiv:2404.06654; scores
and listed lengths from the table of main results in the README of https://github.com/NVIDIA/RULER at commit ebe802cd (later ones have no
table). 13 synthetic tasks (retrieval, tracing, aggregation, questions); the effective length is the longest at which the score reaches
that of Llama-2-7B at 4k tokens, 85.6. Scores of Qwen3, Qwen2.5-1M and Jamba-1.5-large there are those that the models' authors report, and
three of the lengths that the README lists for Qwen3 are longer than the scores say: both are kept. Left out are rows of models like these.
"""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.explaining.words import count

COMMIT = "ebe802cd6c0a12684ddebc6a9ec603282b42ce2c"
"""Of github.com/NVIDIA/RULER: its README holds what is below."""
SOURCE = f"Hsieh et al., RULER, COLM 2024, arXiv:2404.06654 (scores: README of github.com/NVIDIA/RULER at commit {COMMIT[:8]})"
LENGTHS = (4096, 8192, 16384, 32768, 65536, 131072)
"""Lengths that were measured [tokens]."""
LONGEST = LENGTHS[-1]
THRESHOLD = 85.6
"""Score of Llama-2-7B at 4k tokens: a length at which a model has at least as much counts as effective."""
SAME = frozenset(
    ("instruct", "chat", "it", "hf", "bf16", "fp8", "fp4", "nvfp4", "mxfp4", "int8", "int4", "awq", "gptq", "gguf")
)
"""What may follow the name of a model that was measured: the same training, or its weights in another format."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A model that was measured.

    Attributes:
        name: as published.
        ours: its name here; "" for models that are none of ours.
        claimed: context that the model claims [tokens].
        scores: at each of :data:`LENGTHS`.
        listed: effective length that the README lists; :data:`LONGEST` for "> 128K" [tokens].
    """

    name: str
    ours: str
    claimed: int
    scores: tuple[float, ...]
    listed: int

    @property
    def effective(self) -> int:
        """Longest length up to which every score reaches the threshold; 0 if none does [tokens]."""
        reached = 0
        for length, score in zip(LENGTHS, self.scores, strict=True):
            if score < THRESHOLD:
                break
            reached = length
        return reached

    @property
    def tested(self) -> int:
        """How much of what it claims was measured [tokens]."""
        return min(self.claimed, LONGEST)

    def score(self, tokens: int) -> float:
        """Return the score at one of :data:`LENGTHS`."""
        return self.scores[LENGTHS.index(tokens)]


K = 1024
MEASURED = (
    Measured("Qwen3-235B-A22B-Instruct-2507", "Qwen3-235B-A22B-Instruct-2507", K * K, (98.5, 97.6, 96.9, 97.3, 95.8, 93.9), 128 * K),
    Measured("Jamba-1.5-large (94B/398B)", "AI21-Jamba-1.5-Large", 256 * K, (96.7, 96.6, 96.4, 96.0, 95.4, 95.1), 128 * K),
    Measured("Gemini-1.5-pro", "", K * K, (96.7, 95.8, 96.0, 95.9, 95.9, 94.4), 128 * K),
    Measured("Qwen2.5-14B-Instruct-1M", "Qwen2.5-14B-Instruct-1M", K * K, (97.5, 97.1, 94.6, 94.9, 94.9, 92.2), 128 * K),
    Measured("Qwen3-30B-A3B-Instruct-2507", "Qwen3-30B-A3B-Instruct-2507", K * K, (98.0, 96.7, 96.9, 97.2, 93.4, 89.1), 128 * K),
    Measured("Qwen3-235B-A22B", "Qwen3-235B-A22B", 128 * K, (97.7, 97.2, 96.4, 95.1, 93.3, 90.6), 128 * K),
    Measured("Qwen3-14B", "Qwen3-14B", 128 * K, (98.0, 97.8, 96.4, 96.1, 94.0, 85.1), 128 * K),
    Measured("Jamba-1.5-mini (12B/52B)", "AI21-Jamba-1.5-Mini", 256 * K, (95.6, 95.6, 94.8, 94.6, 92.8, 90.0), 128 * K),
    Measured("Qwen3-32B", "Qwen3-32B", 128 * K, (98.4, 96.0, 96.2, 94.4, 91.8, 85.6), 128 * K),
    Measured("Qwen3-30B-A3B", "Qwen3-30B-A3B", 128 * K, (96.5, 97.0, 95.3, 92.4, 89.1, 79.2), 64 * K),
    Measured("GPT-4-1106-preview", "", 128 * K, (96.6, 96.3, 95.2, 93.2, 87.0, 81.2), 64 * K),
    Measured("Llama 3.1 (70B)", "Llama-3.1-70B", 128 * K, (96.5, 95.8, 95.4, 94.8, 88.4, 66.6), 64 * K),
    Measured("Qwen3-8B", "Qwen3-8B", 128 * K, (96.3, 96.0, 91.8, 91.2, 82.1, 77.4), 64 * K),
    Measured("Qwen2 (72B)", "Qwen2-72B", 128 * K, (96.9, 96.1, 94.9, 94.1, 79.8, 53.7), 32 * K),
    Measured("Command-R-plus (104B)", "c4ai-command-r-plus", 128 * K, (95.6, 95.2, 94.2, 92.0, 84.3, 63.1), 32 * K),
    Measured("GLM4 (9B)", "glm-4-9b-chat-1m", K * K, (94.7, 92.8, 92.1, 89.9, 86.7, 83.1), 64 * K),
    Measured("Llama 3.1 (8B)", "Llama-3.1-8B", 128 * K, (95.5, 93.8, 91.6, 87.4, 84.7, 77.0), 32 * K),
    Measured("Mixtral-8x22B", "Mixtral-8x22B-v0.1", 64 * K, (95.6, 94.9, 93.4, 90.9, 84.7, 31.7), 32 * K),
    Measured("Yi (34B)", "Yi-34B-200K", 200 * K, (93.3, 92.2, 91.3, 87.5, 83.2, 77.3), 32 * K),
    Measured("Qwen3-4B", "Qwen3-4B", 128 * K, (95.1, 93.6, 91.0, 87.8, 77.8, 66.0), 64 * K),
    Measured("Phi-3-medium (14B)", "Phi-3-medium-128k", 128 * K, (93.3, 93.2, 91.1, 86.8, 78.6, 46.1), 32 * K),
    Measured("Mixtral-8x7B", "Mixtral-8x7B-v0.1", 32 * K, (94.9, 92.1, 92.5, 85.9, 72.4, 44.5), 32 * K),
)  # fmt: skip


def measured_of(name: str) -> Measured | None:
    """Return the measurement of a model, under its name or that of its weights in another format; None if it is not among them."""
    words = _words(name)
    for item in MEASURED:
        own = _words(item.ours)
        if item.ours and [word for word in words if word in own] == own and set(words) <= {*own, *SAME}:
            return item
    return None


def at_the_longest() -> tuple[int, int]:
    """Return how many that claim 128k or more were measured, and how many of them are effective there."""
    claiming = [item for item in MEASURED if item.claimed >= LONGEST]
    return len(claiming), sum(item.effective >= LONGEST for item in claiming)


def effective_context(name: str, window: int) -> str:
    """Return the verdict on a model's window: by its own measurement, or, where there is none, by those of others.

    Args:
        name: of the model.
        window: of its config [tokens].
    """
    says = "The window says what is accepted, not what is used well"
    measured, (claiming, effective) = measured_of(name), at_the_longest()
    others = f"of {claiming} models in the table below that claim 128k or more, {effective} are effective at 128k"
    if measured is None:
        return (
            f"Not by itself. {says}: the effective context is often shorter. By RULER, {others}, the others up to 32k or 64k. "
            f"{name} is not in our table, so how it does is unknown here: measure it at the length that you need."
        )
    at, listed = measured.effective, measured.listed
    last = LONGEST if at < measured.tested else measured.tested
    scores = f"its score falls from {measured.scores[0]} at 4k to {measured.score(last)} at {last // K}k"
    doubt = f" (its README lists {count(listed)}, where the score is {measured.score(listed)})" if listed != at else ""
    beyond = (
        f" The window of its config is {count(window)}: more needs positions that are extended (RoPE scaling)."
        if window < measured.claimed
        else ""
    )
    if at < measured.tested:
        return (
            f"No. {says}: the effective context is often shorter. RULER measured {measured.name}: of {count(measured.claimed)} tokens "
            f"that it claims, {count(at)} are effective{doubt}; {scores}.{beyond}"
        )
    return (
        f"Of {name} and its {last // K}k it is true by one measure, but not because of its window. {says}; by RULER, {others}. "
        f"{measured.name} is effective in all {count(last)} tokens that it claims and that were tested{doubt}; {scores}.{beyond}"
    )


def _words(name: str) -> list[str]:
    return name.casefold().split("-")
