"""The figures of ``costmodel interfere --plot``: takes from a record what each shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from costmodel.cli.figures import draw_itl, draw_ladder, draw_tokens, save_figure
from costmodel.cli.figures.itl import Panel
from costmodel.cli.figures.ladder import Ladder
from costmodel.cli.figures.style import creator, format_ratio, format_seconds
from costmodel.cli.figures.tokens import Injected
from costmodel.cli.simulate_words import value
from costmodel.cli.text import count, plural
from costmodel.hardware.errors import InputError
from costmodel.simulation.results import SHARES, Percentiles
from costmodel.validation.interference.documents import Interference, RunResult
from costmodel.validation.interference.records import Run
from costmodel.validation.interference.summary import usual_gap

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from costmodel.validation.checking.telling import Told

BESIDE = 0.6
"""Of the time that a spike takes, so much is shown on either side of it."""
LEAST_BESIDE = 12
"""Usual gaps on either side at least."""


def draw(figure: str, found: Sequence[Told], path: Path, force: bool) -> None:
    """Draw one kind of figure, and save it.

    Args:
        figure: ``gaps``, ``percentiles`` or ``timeline``.
        found: experiments; several stand beside one another, such as those of two token budgets.
        path, force: where to save, and whether to overwrite.

    Raises:
        InputError: there is nothing to draw, more than the figure can show, or a file that cannot be written.
    """
    if figure == "gaps":
        drawn = _gaps(found)
    elif figure == "percentiles":
        drawn = percentiles(found)
    else:
        if len(found) > 1:
            raise InputError(f"--figure timeline shows one record, not {len(found)}; --figure gaps takes several")
        drawn = _timeline(found[0])
    save_figure(drawn, path, force)


def _title(found: Sequence[Told]) -> str:
    summary = found[0].summary
    prompt = count(summary.workload.prompt_tokens)
    spikes = [(told.summary.spike_s, told) for told in found if told.summary.spike_s is not None]
    if len(found) > 1 and len(spikes) == len(found):
        (low, small), (high, large) = (pick(spikes, key=lambda each: each[0]) for pick in (min, max))
        if (steps := small.summary.one_step.steps) is not None and _name(small) != _name(large):
            instead = " instead of once" if large.summary.one_step.steps == 1 else ""
            return (
                f"{_name(small).capitalize()}: a prompt of {prompt} tokens makes every stream wait {steps:g} times for up to "
                f"{format_seconds(low)}{instead}{' ' if instead else ', not '}for {format_seconds(high)}"
            )
    if len(found) > 1 or summary.spike_s is None or summary.spike_ratio is None:
        return f"Gaps between tokens, without and with prompts of {prompt} tokens"
    return (
        f"A prompt of {prompt} tokens keeps every stream waiting {_times(summary)}for {_up_to(summary)}"
        f"{format_seconds(summary.spike_s)}, {format_ratio(summary.spike_ratio)} times the usual gap"
    )


def _times(summary: Interference) -> str:
    steps = summary.one_step.steps
    return f"{steps:g} times " if steps is not None and steps > 1 else ""


def _up_to(summary: Interference) -> str:
    return "up to " if _times(summary) else ""


def _foot(found: Sequence[Told]) -> str:
    summary = found[0].summary
    server, plan = summary.server, summary.workload
    engine = " ".join(filter(None, ["vLLM" if server.engine == "vllm" else server.engine, server.version]))
    parts = [f"measured: {summary.model_name}", engine]
    parts.append(summary.machine.device if summary.machine else "")
    parts.append(f"{plural(plan.streams, 'stream')} from context {count(plan.context_tokens)}")
    if len(found) == 1 and (budget := _budget(summary)) is not None:
        parts.append(f"budget {count(budget)}")
    if len(found) > 1:
        parts.append(f"a prompt every {plan.every_s:g} s")
    return " · ".join([*filter(None, parts), creator()])


def _budget(summary: Interference) -> int | None:
    budget = summary.server.flags.get("max_num_batched_tokens")
    return budget if isinstance(budget, int) else None


def _name(told: Told) -> str:
    """Return what tells an experiment from others: its token budget, or that a prompt went through in one step."""
    summary = told.summary
    if (budget := _budget(summary)) is None:
        return "one step" if summary.one_step.verdict == "yes" else summary.record or "record"
    whole = summary.workload.prompt_tokens + summary.workload.streams
    return "one step" if budget >= whole else f"budget {count(budget)}"


def _names(found: Sequence[Told]) -> list[str]:
    names = [_name(told) for told in found]
    return (
        names
        if len(set(names)) == len(names)
        else [told.summary.record or name for told, name in zip(found, names, strict=True)]
    )


def _gaps(found: Sequence[Told]) -> Figure:
    panels = []
    if len(found) == 1:
        record, summary = found[0].record, found[0].summary
        if record.baseline is not None and summary.baseline is not None and summary.baseline.itl is not None:
            panels.append(_panel("baseline: no injection", record.baseline, summary.baseline))
    names = [_every(found[0].summary)] if len(found) == 1 else _names(found)
    for name, told in zip(names, found, strict=True):
        run, result = told.record.injected, told.summary.injected
        if run is None or result is None or result.itl is None:
            continue
        panels.append(
            _panel(name, run, result)._replace(
                injections=[each.sent_s for each in told.summary.injections],
                height=told.compared.spike.spike.height_s if told.compared is not None else None,
                ttft=result.ttft.p50_s if result.ttft else None,
            )
        )
    if not panels:
        raise InputError("no token came after another: there is no gap to draw")
    duration = max(run.end - run.start for told in found for run in told.record.runs)
    return draw_itl(panels, duration, _title(found), _foot(found))


def _every(summary: Interference) -> str:
    plan = summary.workload
    return f"with a prompt of {count(plan.prompt_tokens)} tokens every {plan.every_s:g} s"


def _panel(name: str, run: Run, result: RunResult) -> Panel:
    import numpy as np

    pairs = np.array([pair for answer in run.answers for pair in answer.gaps]).reshape(-1, 2)
    ends, gaps = pairs[:, 0], pairs[:, 1]
    inside = (ends - gaps >= run.start) & (ends <= run.end) & (gaps > 0)
    order = np.argsort(ends[inside], kind="stable")
    usual, longest = usual_gap(run) or 0.0, result.itl.max_s if result.itl else 0.0
    return Panel(
        name, ends[inside][order] - run.start, gaps[inside][order], usual, longest, high=result.stall_detail.factor
    )


def percentiles(found: Sequence[Told]) -> Figure:
    """Return the ladder: of each experiment the run with injections as it was and as it was predicted, and the first baseline."""
    ladders = []
    names = ["injected"] if len(found) == 1 else [f"{name}, measured" for name in _names(found)]
    made = ["simulated"] if len(found) == 1 else [f"{name}, predicted" for name in _names(found)]
    for index, (told, measured, predicted) in enumerate(zip(found, names, made, strict=True)):
        run, simulated = told.summary.injected, told.summary.simulated
        if run is not None and run.itl is not None:
            ladders.append(Ladder(measured, _rungs(run.itl), index))
            if simulated is not None and simulated.itl is not None:
                ladders.append(Ladder(predicted, _rungs(simulated.itl), index, hollow=True))
    baseline = found[0].summary.baseline
    if baseline is not None and baseline.itl is not None:
        ladders.append(Ladder("baseline", _rungs(baseline.itl), len(found)))
    # A logarithmic axis has no room for gaps of no length, of tokens that came together.
    shares = [name for name in SHARES if all(ladder.rungs[name] > 0 for ladder in ladders)]
    ladders = [ladder._replace(rungs={name: ladder.rungs[name] for name in shares}) for ladder in ladders]
    return draw_ladder(ladders, "gap between two tokens", _title(found), _foot(found))


def _rungs(found: Percentiles) -> dict[str, float]:
    return {name: value(found, name) for name in SHARES}


def _timeline(told: Told) -> Figure:
    """Draw the tokens around the injection whose spike is nearest to the median."""
    record, summary = told.record, told.summary
    run = record.injected
    made = [each for each in summary.injections if each.ttft_s is not None]
    if run is None or not made:
        raise InputError("no injected prompt was answered: there is nothing to draw around")
    felt = [each for each in made if each.spike is not None]
    chosen = made[0]
    if felt and summary.spike_s is not None:
        usual = summary.spike_s
        chosen = min(felt, key=lambda each: abs(summary.spikes[each.spike or 0].height_s - usual))
    first = chosen.sent_s + (chosen.ttft_s or 0.0)
    spike = None if chosen.spike is None else summary.spikes[chosen.spike]
    begin, end = (chosen.sent_s, first) if spike is None else (spike.time_s, spike.time_s + spike.duration_s)
    beside = max(BESIDE * (end - begin), LEAST_BESIDE * (summary.decode_step_s or 0.0))
    window = (min(begin, chosen.sent_s) - beside, max(end, first) + beside)
    streams: dict[int, list[float]] = {index: [] for index in range(record.plan.streams)}
    for answer in run.answers:
        streams.setdefault(answer.stream, []).extend(moment - run.start for moment in answer.times)
    shown = Injected(chosen.sent_s, first)
    if spike is not None:
        shown = shown._replace(spike=(begin, end), height=spike.height_s, steps=spike.steps)
    return draw_tokens(list(streams.values()), shown, window, _title([told]), _foot([told]))
