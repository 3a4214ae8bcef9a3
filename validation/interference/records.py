"""The record of a long-prompt experiment: JSON lines, added to as tokens arrive, so that whatever ends a run leaves what came before.

The first line is the header (:class:`Header`). Then comes a line per event, with its time in seconds since the record began, on the
client's monotonic clock:

=============================================  ==========================================================================================
``{"run": "baseline", "time": t}``             a run begins: ``baseline`` (injector off) or ``injected``
``{"begun": "baseline", "time": t}``           every stream has a token: it counts from here on
``{"send": id, "stream": s, "time": t}``       a request of stream s is sent (an answer); without ``stream`` it is an injected prompt
``{"token": id, "time": t, "count": n}``       n tokens arrived at once; ``count`` is left out where it is 1
``{"end": id, "time": t, "outcome": o, …}``    it is over (:data:`Outcome`); ``problem`` in words; ``prompt_tokens``, ``cached_tokens``
                                               and ``output_tokens`` as the server counted them
``{"lag": {…}, "time": t}``                    how late the client's own timer fired in this run (:class:`Lag`)
``{"metrics": {…}, "time": t}``                counts of vLLM's ``/metrics``, at the beginning and at the end of a run
``{"done": "baseline", "time": t}``            the run has lasted as long as planned
``{"late": s, "time": t}``                     the client itself came that much too late [s], beyond :data:`LATE`
``{"note": "…", "time": t}``                   what else there is to say, such as a server that went away
``{"complete": true}``                         everything that was planned has been run
=============================================  ==========================================================================================
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from costmodel.hardware.errors import InputError
from costmodel.hardware.profile import Frozen
from costmodel.hardware.reading import shown_path
from costmodel.lines import Lines
from costmodel.validation.measurements.types import Machine, Model

LATE = 0.02
"""A client that is later than this is noted with the moment [s]."""

LONGEST = 1e8
"""No record takes longer [s]."""
MOST_AT_ONCE = 1_000_000
"""Tokens that can have come together; more are a broken file."""
SCHEMA = "costmodel.interference_record/1"

RunName = Literal["baseline", "injected"]
Outcome = Literal["whole", "stopped", "failed"]
"""An answer came to its end (by length or by itself); the client stopped it, as its run was over; or something went wrong."""

Seconds = Annotated[float, Field(allow_inf_nan=False)]


class Server(Frozen):
    """What was asked.

    Attributes:
        url: its address, without user, password or query.
        engine: ``vllm`` where it says so; None where nobody knows.
        version: as it says itself.
        flags: that are known: those it was started with, and what its metrics tell.
        started: by costmodel, for this experiment.
    """

    url: str
    engine: str | None = None
    version: str | None = None
    flags: dict[str, str | int | float | bool | None] = Field(default_factory=dict)
    started: bool = False


class Plan(Frozen):
    """What was to be run.

    Attributes:
        streams: chats that are answered at once.
        context_tokens: of the prompt of each; what is generated comes on top.
        output_tokens: that each answer is asked for; then the stream begins a new one.
        prompt_tokens: of an injected prompt.
        every_s: between injections [s].
        first_s: from the beginning of the run to the first [s].
        duration_s: of the run with injections [s].
        baseline_s: of the run without [s].
    """

    streams: Annotated[int, Field(ge=1)]
    context_tokens: Annotated[int, Field(ge=1)]
    output_tokens: Annotated[int, Field(ge=1)]
    prompt_tokens: Annotated[int, Field(ge=1)]
    every_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    first_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    duration_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    baseline_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Header(Frozen):
    """What is the same for the whole record.

    Attributes:
        model: where its architecture is known: the folder that was served, or ``--model``.
        model_name: as the server calls it.
        machine: of the server; None where nobody knows.
        date: of the beginning, ISO 8601.
        command: that made it, without secrets.
    """

    schema_: Literal["costmodel.interference_record/1"] = Field(
        default="costmodel.interference_record/1", alias="schema"
    )
    server: Server
    model_name: str
    model: Model | None = None
    machine: Machine | None = None
    plan: Plan
    date: str
    command: str
    versions: dict[str, str] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Answer(Frozen):
    """One request of a stream.

    Attributes:
        stream: whose, from 0.
        sent: when [s].
        times: when tokens arrived [s], one entry per token; several that came together have the same time.
        ended: when it was over [s]; None if the record ends before.
        outcome: None if the record ends before it was over.
        problem: what went wrong, in words.
        prompt_tokens, cached_tokens, output_tokens: as the server counted them; None where it did not say. More output than
            ``times`` has entries came in pieces of several tokens, of a server that does not count them piece by piece.
    """

    stream: int
    sent: float
    times: tuple[float, ...] = ()
    ended: float | None = None
    outcome: Outcome | None = None
    problem: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None

    @property
    def gaps(self) -> tuple[tuple[float, float], ...]:
        """(when it ended, how long it was) of every gap between two tokens [s]; 0 long between tokens that came together."""
        return tuple((later, later - earlier) for earlier, later in pairwise(self.times))


class Injection(Frozen):
    """One injected prompt; attributes as of :class:`Answer`.

    Attributes:
        first: when its first token arrived [s]; None if none did.
    """

    sent: float
    first: float | None = None
    ended: float | None = None
    outcome: Outcome | None = None
    problem: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None


class Lag(Frozen):
    """How late the client's own timer fired [s]: stamps may be as late."""

    p50_s: float
    p99_s: float
    max_s: float
    count: int


class Run(Frozen):
    """One run.

    Attributes:
        start: when every stream had a token [s]: what came before does not count. Of a run that did not get there, its first event.
        end: [s]; of a run that was cut short, its last event.
        answers: of all streams, in the order in which they were sent.
        injections: in the order in which they were sent.
        late: (when, by how much) the client itself was late [s], beyond :data:`LATE`.
        metrics: by how much the server's own counts grew in the run (:mod:`~costmodel.validation.interference.metrics`); empty where
            it does not tell.
        complete: it lasted as long as planned.
    """

    name: RunName
    start: float
    end: float
    answers: tuple[Answer, ...] = ()
    injections: tuple[Injection, ...] = ()
    lag: Lag | None = None
    late: tuple[tuple[float, float], ...] = ()
    metrics: dict[str, float] = Field(default_factory=dict)
    complete: bool = False
    notes: tuple[str, ...] = ()

    @property
    def gaps(self) -> list[float]:
        """Every gap between two tokens of one answer that began and ended in the run, pooled over all streams [s]."""
        return [
            gap for answer in self.answers for end, gap in answer.gaps if end - gap >= self.start and end <= self.end
        ]

    def stream_times(self) -> dict[int, list[tuple[float, ...]]]:
        """Return, for each stream, the token times of its answers [s]."""
        found: dict[int, list[tuple[float, ...]]] = {}
        for answer in self.answers:
            found.setdefault(answer.stream, []).append(answer.times)
        return found


class Record(Header):
    """A whole record.

    Attributes:
        runs: one or two, the baseline first; fewer if it ended early.
        complete: everything that was planned has been run.
    """

    runs: tuple[Run, ...] = ()
    complete: bool = False

    @property
    def baseline(self) -> Run | None:
        """The run with the injector off."""
        return next((run for run in self.runs if run.name == "baseline"), None)

    @property
    def injected(self) -> Run | None:
        """The run with injections."""
        return next((run for run in self.runs if run.name == "injected"), None)


class Recorder:
    """Writes a record. Every line has left the process when its method returns, so that a kill loses nothing that came before.

    Args:
        path: of the new file.
        header: its first line.

    Raises:
        InputError: there is such a file, or the system refuses.
    """

    def __init__(self, path: Path, header: Header) -> None:
        try:
            self._lines = Lines(path)
        except FileExistsError:
            raise InputError(f"{shown_path(path)} exists; use --force to replace it") from None
        self.add(**header.model_dump(by_alias=True, mode="json"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.close()

    def add(self, **event: Any) -> None:
        """Add a line; times are rounded to a microsecond.

        Raises:
            InputError: the disk is full or gone.
        """
        if "time" in event:
            event["time"] = round(event["time"], 6)
        self._lines.add(event)
