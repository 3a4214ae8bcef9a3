"""Blocks that a simulated sequence takes for layers with a window, and for recurrent ones.

The simulator counts one block for so many tokens of the layers that keep everything. What layers with a window take of the same pool is
counted once per sequence, from its first token to its last: what it takes at its full length, min(tokens, window − 1 + in flight) in whole
blocks of every group. So a sequence on its way to its window takes less than counted, never more, but for prompts: what one that is being
prefilled takes beside a decoding sequence is set aside, for one prompt.
"""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.memory.blocks import KvGroup, kv_blocks, sequence_blocks
from costmodel.memory.pool import Pool


@dataclass(frozen=True, slots=True)
class Seats:
    """What a sequence takes whatever it has in the cache so far.

    Attributes:
        windowed: groups of layers with a window, or with states.
        full: groups that keep everything; a simulated block is one of each.
        spare: blocks beside those of ``windowed``.
        in_flight: tokens of a decoding sequence that are on their way at once.
    """

    windowed: tuple[KvGroup, ...] = ()
    full: int = 1
    spare: int = 0
    in_flight: int = 1

    def of(self, tokens: int) -> int:
        """Return the simulated blocks that a sequence of ``tokens`` at its end takes for its windows."""
        if not self.windowed and not self.spare:
            return 0
        return int(kv_blocks(sequence_blocks(self.windowed, tokens, self.in_flight) + self.spare, self.full))

    def set_aside(self, prompt: int, in_flight: int) -> int:
        """Return the blocks of the pool that a prompt takes while ``in_flight`` of its tokens are computed, beside its seat."""
        under_way = sequence_blocks(self.windowed, prompt + 1, in_flight)
        return int(under_way - sequence_blocks(self.windowed, prompt + 1, self.in_flight))


NO_SEATS = Seats()
"""Of a model without windows."""


def seats_of(pool: Pool) -> Seats:
    """Return the seats of a pool; where all layers have a window, they count as if they kept everything."""
    windowed = tuple(group for group in pool.groups if not group.keeps_all)
    full = len(pool.groups) - len(windowed)
    if not full:
        return Seats(full=len(windowed), spare=len(windowed))
    return Seats(windowed, full, 0, pool.settings.rules.in_flight)
