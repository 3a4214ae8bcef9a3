"""What a flock of decoding requests reads in layers with a sliding window, with local chunks, or with cross-attention."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from costmodel.equations.compressed import Compressed
from costmodel.equations.work import EncoderStates, LocalChunks
from costmodel.simulation.entries import Entries


@dataclass(slots=True)
class Window:
    """What the flock reads in the layers of one sliding window.

    Attributes:
        width: w [tokens].
        read: Σ min(computed + 1, w) of the flock's next step [tokens].
        growing: members whose context is still within the window.
        full_at: heap of the counts at which they fill it.
    """

    width: int
    read: int = 0
    growing: int = 0
    full_at: list[int] = field(default_factory=list)
    left: dict[int, int] = field(default_factory=dict)
    """Entries of the heap whose members have left."""

    def join(self, computed: int, count: int) -> None:
        """Add a member with ``computed`` tokens."""
        self.read += min(computed + 1, self.width)
        if computed + 1 < self.width:
            self.growing += 1
            heapq.heappush(self.full_at, count + self.width - 1 - computed)

    def leave(self, computed: int, count: int) -> None:
        """Take a member out."""
        self.read -= min(computed + 1, self.width)
        if computed + 1 < self.width:
            self.growing -= 1
            full = count + self.width - 1 - computed
            self.left[full] = self.left.get(full, 0) + 1

    def advance(self, steps: int, count: int) -> None:
        """Let ``steps`` steps pass, of which none but the last may fill a member's window; ``count`` is the number after them."""
        self.read += self.growing * steps
        while self.full_at and self.full_at[0] <= count:
            full = heapq.heappop(self.full_at)
            if self.left.get(full):
                self.left[full] -= 1
            else:
                self.growing -= 1

    def steps_left(self, count: int) -> int:
        """Return the steps until a member's window is full."""
        while self.full_at and self.left.get(self.full_at[0]):
            self.left[heapq.heappop(self.full_at)] -= 1
        return self.full_at[0] - count if self.full_at else 1 << 40


@dataclass(slots=True)
class Local:
    """What the flock reads in the layers of one kind of local chunks: a member's part grows to w and begins again at one.

    Attributes:
        width: w [tokens].
        read: Σ (computed mod w) + 1 of the flock's next step [tokens].
        growing: members.
        full_at: heap of the counts at which some of them begin a chunk.
        starts: how many do at each of them.
    """

    width: int
    read: int = 0
    growing: int = 0
    full_at: list[int] = field(default_factory=list)
    starts: dict[int, int] = field(default_factory=dict)

    def join(self, computed: int, count: int) -> None:
        """Add a member with ``computed`` tokens."""
        into = computed % self.width
        self.read += into + 1
        self.growing += 1
        self._start(count + self.width - into, 1)

    def leave(self, computed: int, count: int) -> None:
        """Take a member out."""
        into = computed % self.width
        self.read -= into + 1
        self.growing -= 1
        self.starts[count + self.width - into] -= 1

    def advance(self, steps: int, count: int) -> None:
        """Let ``steps`` steps pass, of which none but the last may end a member's chunk; ``count`` is the number after them."""
        self.read += self.growing * steps
        while self.full_at and self.full_at[0] <= count:
            members = self.starts.pop(heapq.heappop(self.full_at))
            self.read -= self.width * members
            if members:
                self._start(count + self.width, members)

    def steps_left(self, count: int) -> int:
        """Return the steps until a member's chunk ends."""
        while self.full_at and not self.starts[self.full_at[0]]:
            del self.starts[heapq.heappop(self.full_at)]
        return self.full_at[0] - count if self.full_at else 1 << 40

    def _start(self, at: int, members: int) -> None:
        if at not in self.starts:
            self.starts[at] = 0
            heapq.heappush(self.full_at, at)
        self.starts[at] += members


@dataclass(slots=True)
class States:
    """What the flock reads in layers of cross-attention: a member's encoder states, however long it is.

    Attributes:
        states: E of a member.
        read: of all members.
        growing: members that read more from step to step: none.
    """

    states: int
    read: int = 0
    growing: int = 0

    def join(self, computed: int, count: int) -> None:
        """Add a member."""
        self.read += self.states

    def leave(self, computed: int, count: int) -> None:
        """Take a member out."""
        self.read -= self.states

    def advance(self, steps: int, count: int) -> None:
        """Let steps pass: nothing changes."""

    def steps_left(self, count: int) -> int:
        """Return the steps until something changes: without end."""
        return 1 << 40


def follow(window: int | LocalChunks | Compressed | EncoderStates) -> Window | Local | Entries | States:
    """Return what keeps account of a flock's reads in layers with this window."""
    if isinstance(window, EncoderStates):
        return States(int(window.size))
    if isinstance(window, Compressed):
        return Entries(window)
    return Local(window.size) if isinstance(window, LocalChunks) else Window(window)
