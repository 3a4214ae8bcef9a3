"""The figures of ``costmodel interfere --plot``: takes from a record what each shows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.cli.figures import draw_itl, draw_ladder, draw_tokens, save_figure
from costmodel.cli.figures.itl import Panel
from costmodel.cli.figures.ladder import Ladder
from costmodel.cli.figures.style import creator, format_ratio, format_seconds
from costmodel.cli.figures.tokens import Injected
from costmodel.cli.simulate_words import value
from costmodel.cli.text import count, plural
from costmodel.hardware.errors import InputError
from costmodel.simulation.results import SHARES, Percentiles
from costmodel.validation.interference.records import Record, Run
from costmodel.validation.interference.summary import Interference, RunResult, usual_gap

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from costmodel.validation.interference.comparing import Compare

BESIDE = 0.6
"""Of the time that a spike takes, so much is shown on either side of it."""
LEAST_BESIDE = 12
"""Usual gaps on either side at least."""


def draw(
    figure: str,
    record: Record,
    summary: Interference,
    compared: Compare | None,
    options: dict[str, Any] | None,
    path: Path,
    force: bool,
) -> None:
    """Draw one kind of figure, and save it.

    Args:
        figure: ``gaps``, ``percentiles`` or ``timeline``.
        record, summary: of the experiment.
        compared: what the equations say; None if they were not asked.
        options: that they were asked with.
        path, force: where to save, and whether to overwrite.

    Raises:
        InputError: there is nothing to draw, or a file that cannot be written.
    """
    if figure == "gaps":
        drawn = _gaps(record, summary, compared)
    elif figure == "percentiles":
        drawn = _percentiles(record, summary, options if compared is not None else None)
    else:
        drawn = _timeline(record, summary)
    save_figure(drawn, path, force)


def _title(summary: Interference) -> str:
    prompt = count(summary.workload.prompt_tokens)
    if summary.spike_s is None or summary.spike_ratio is None:
        return f"Gaps between tokens, without and with prompts of {prompt} tokens"
    return (
        f"A prompt of {prompt} tokens keeps every stream waiting for {format_seconds(summary.spike_s)}, "
        f"{format_ratio(summary.spike_ratio)} times the usual gap"
    )


def _foot(summary: Interference) -> str:
    server, plan = summary.server, summary.workload
    engine = " ".join(filter(None, ["vLLM" if server.engine == "vllm" else server.engine, server.version]))
    parts = [f"measured: {summary.model_name}", engine]
    parts.append(summary.machine.device if summary.machine else "")
    parts.append(f"{plural(plan.streams, 'stream')} from context {count(plan.context_tokens)}")
    if isinstance(budget := server.flags.get("max_num_batched_tokens"), int):
        parts.append(f"budget {count(budget)}")
    return " · ".join([*filter(None, parts), creator()])


def _gaps(record: Record, summary: Interference, compared: Compare | None) -> Figure:
    panels = []
    named = (("baseline: no injection", record.baseline, summary.baseline), ("", record.injected, summary.injected))
    for name, run, result in named:
        if run is None or result is None or result.itl is None:
            continue
        panel = _panel(name or _every(summary), run, result)
        if run.name == "injected":
            ttft = result.ttft.p50_s if result.ttft else None
            sent = [each.sent_s for each in summary.injections]
            height = compared.spike.spike.height_s if compared is not None else None
            panel = panel._replace(injections=sent, height=height, ttft=ttft)
        panels.append(panel)
    if not panels:
        raise InputError("no token came after another: there is no gap to draw")
    duration = max(run.end - run.start for run in record.runs)
    return draw_itl(panels, duration, _title(summary), _foot(summary))


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
    return Panel(name, ends[inside][order] - run.start, gaps[inside][order], usual, longest)


def _percentiles(record: Record, summary: Interference, options: dict[str, Any] | None) -> Figure:
    ladders = []
    if summary.injected is not None and summary.injected.itl is not None:
        ladders.append(Ladder("injected", _rungs(summary.injected.itl)))
        if options is not None:
            from costmodel.validation.interference.comparing import simulate

            simulated = simulate(record, summary, **options)
            if simulated is not None and simulated.itl is not None:
                ladders.append(Ladder("simulated", _rungs(simulated.itl)))
    if summary.baseline is not None and summary.baseline.itl is not None:
        ladders.append(Ladder("baseline", _rungs(summary.baseline.itl)))
    # A logarithmic axis has no room for gaps of no length, of tokens that came together.
    names = [name for name in SHARES if all(ladder.rungs[name] > 0 for ladder in ladders)]
    ladders = [Ladder(ladder.name, {name: ladder.rungs[name] for name in names}) for ladder in ladders]
    return draw_ladder(ladders, "gap between two tokens", _title(summary), _foot(summary))


def _rungs(found: Percentiles) -> dict[str, float]:
    return {name: value(found, name) for name in SHARES}


def _timeline(record: Record, summary: Interference) -> Figure:
    """Draw the tokens around the injection whose spike is nearest to the median."""
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
    shown = Injected(chosen.sent_s, first, (begin, end) if spike else None, spike.height_s if spike else None)
    return draw_tokens(list(streams.values()), shown, window, _title(summary), _foot(summary))
