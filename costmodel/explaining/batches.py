"""How many streams decode together: as many as are asked for, or as many as the KV cache holds."""

from __future__ import annotations

from typing import NamedTuple

from costmodel.explaining.scene import Scene
from costmodel.explaining.words import count, plural
from costmodel.memory.engines import NOTHING, Beside


class Batch(NamedTuple):
    """Streams that share a decode step.

    Where fewer fit than are asked for, a server lets as many run and the others wait. Where not one fits, the step is that of all that
    are asked for, which no such server runs, and :attr:`said` says so.
    """

    streams: int
    """That decode together."""
    asked: int
    most: int
    """That fit."""
    where: str = "at once"
    """How they fit: ``at once``, ``beside the draft``."""

    @property
    def cut(self) -> bool:
        """Whether fewer decode together than are asked for."""
        return self.streams < self.asked

    @property
    def mark(self) -> str:
        """What is to be said of a batch that is not as asked for, or that does not fit; "" for others."""
        if self.most == 0:
            return "though not one fits" + (f" {self.where}" if self.where != "at once" else "")
        return f"no more of the {count(self.asked)} asked for fit {self.where}" if self.cut else ""

    @property
    def brief(self) -> str:
        """The batch in a headline: ``17 of 32 streams``."""
        return f"{count(self.streams)} of {count(self.asked)} streams" if self.cut else plural(self.streams, "stream")

    @property
    def together(self) -> str:
        """How the streams decode: ``32 streams together``, ``1 stream alone``."""
        return plural(self.streams, "stream") + (" alone" if self.streams == 1 else " together")

    @property
    def said(self) -> str:
        """The batch in words: ``32 streams``, with its mark."""
        return plural(self.streams, "stream") + (f" ({self.mark})" if self.mark else "")


def batch_of(scene: Scene, context: int, beside: Beside = NOTHING, where: str = "at once") -> Batch:
    """Return the streams that decode together where each has ``context`` tokens in the KV cache.

    Args:
        scene: with the streams that are asked for.
        context: of each [tokens].
        beside: what the KV cache shares the memory with: a draft.
        where: how it is said that they fit.
    """
    most = scene.most_streams(context, beside)
    return Batch(min(scene.streams, most) or scene.streams, scene.streams, most, where)
