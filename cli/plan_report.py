"""Answers of the inverse questions of ``costmodel plan`` as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from costmodel.cli.simulate_words import images_words, prompt_words
from costmodel.cli.text import count, milliseconds, percent, plural, seconds, significant, table, wrapped
from costmodel.planning.documents import Checked, ChunkPlan, FleetPlan, FleetRun, GpuOption, GpuPlan, Plan, SizePlan

MOST_POINTS = 9
"""Rows of the trade-off."""


def report(plan: Plan) -> str:
    """Return heading, verdict, tables, notes and warnings."""
    parts = [_heading(plan), wrapped(_verdict(plan))]
    if plan.nearest:
        enough = [f"  {each.text}" for each in plan.nearest if each.enough]
        partly = [wrapped(f"  {each.text}") for each in plan.nearest if not each.enough]
        if enough:
            parts.append("\n".join(["With any one of these the answer is yes:", *enough]))
        if partly:
            parts.append("\n".join(["Nearest for the limit that binds:", *partly]))
    if isinstance(plan, ChunkPlan):
        parts += [*_checks("tokens per step", plan.at, plan.after), *_trade(plan)]
    elif isinstance(plan, SizePlan):
        parts += [*_bounds(plan), *_checks(_WHAT[plan.unknown], plan.at, plan.after)]
    elif isinstance(plan, GpuPlan):
        parts.append(_parts(plan))
    elif isinstance(plan, FleetPlan):
        parts += _fleets(plan)
    marks = _marks(plan) if isinstance(plan, GpuPlan) else {}
    said = [wrapped(f"note: {note}") for note in plan.notes]
    said += [wrapped(f"warning: {text}") for text in plan.warnings if text not in marks]
    said += [wrapped(f"warning {mark}: {text}") for text, mark in marks.items()]
    if said:
        parts.append("\n".join(said))
    return "\n\n".join(parts)


_WHAT = {"streams": "sequences", "context": "context", "prompt": "prompt"}


def _heading(plan: Plan) -> str:
    name = plan.model or "fixed step times"
    where = "" if plan.gpu is None else f" on {plan.gpus} × {plan.gpu}" if (plan.gpus or 1) > 1 else f" on {plan.gpu}"
    rung = {"calibrated": f", calibrated ({plan.calibration})", "roofline": ", roofline: a floor"}.get(
        plan.rung or "", ""
    )
    asked = [
        f"{key.removesuffix('_s').upper()} ≤ {seconds(value)}"
        for key in ("itl_s", "ttft_s", "tpot_s", "e2e_s")
        if (value := getattr(plan.limits, key)) is not None
    ]
    at = f" at p{plan.limits.percentile:g}" if plan.limits.percentile is not None else ""
    return f"{name}{where}{rung}\n{_load(plan)}" + (f"; {', '.join(asked)}{at}" if asked else "")


def _load(plan: Plan) -> str:
    load = plan.workload
    if load["kind"] == "trace":
        return f"{load['requests']:,} requests of {load['path']}, {significant(float(load['rate_per_s'] or 0), 3)} a second"
    if load["kind"] == "load":
        return (
            f"{significant(float(load['rate_per_s'] or 0), 3)} requests a second, prompts of {_lengths(load, 'prompt')} "
            f"and answers of {_lengths(load, 'output')} tokens, {load['requests']:,} simulated"
        )
    streams, context, prompt = load["streams"], load["context_tokens"], load.get("prompt_tokens")
    text = f"{'as many streams as can be' if streams is None else plural(int(streams), 'stream')} at "
    text += "as long a context as can be" if context is None else f"context {context:,}"
    if plan.plan == "prompt":
        text += ", and as long a prompt as can be" + (f" after {images_words(load)}" if load.get("images") else "")
    elif prompt is not None:
        of = prompt_words(load) if load.get("images") else f"{prompt:,} tokens"
        text += f", a prompt of {of} every {load['every_s']:g} s"
    return text


def _lengths(load: Mapping[str, Any], what: str) -> str:
    """Return the lengths of prompts or answers: one, or from the shortest to the longest, with their mean."""
    longest, spread = load[f"{what}_tokens"], load["spread"]
    if not spread:
        return f"{longest:,}"
    return (
        f"{max(round(longest * (1 - spread)), 1):,} to {longest:,} (mean {max(round(longest * (1 - spread / 2)), 1):,})"
    )


def _verdict(plan: Plan) -> str:
    if not plan.feasible or plan.advice is None:
        return f"No: {plan.binds}."
    advice = plan.advice
    if isinstance(plan, ChunkPlan):
        exact = plan.exact_max_num_batched_tokens
        also = f" (exactly {exact:,})" if exact and exact != advice.max_num_batched_tokens else ""
        return f"--max-num-batched-tokens {advice.max_num_batched_tokens}{also}: {plan.binds}."
    if isinstance(plan, FleetPlan) and plan.plan == "replicas":
        return f"{plural(advice.replicas or 0, 'replica')}, {plural(advice.gpus or 0, 'GPU')}: {plan.binds}."
    if isinstance(plan, FleetPlan):
        ratio = f"{advice.prefill_servers} : {advice.decode_servers}"
        return f"prefill : decode = {ratio}, {plural(advice.gpus or 0, 'GPU')}: {plan.binds}."
    if isinstance(plan, SizePlan) and plan.unknown == "streams":
        return f"--max-num-seqs {advice.max_num_seqs}: {plan.binds}."
    return plan.binds[0].upper() + plan.binds[1:] + "."


def _checks(what: str, at: Checked | None, after: Checked | None) -> list[str]:
    """Return the answer and its neighbour, by the equations and by simulation."""
    rows = []
    for each in (at, after):
        if each is None:
            continue
        rows.append(
            [
                count(each.value), "yes" if each.meets else "no", _ms(each.itl_s), _ms(each.simulated_itl_s),
                _ms(each.tpot_s), _ms(each.ttft_s), _ms(each.simulated_ttft_s),
                "–" if each.kv_blocks is None else f"{each.kv_blocks_needed:,} of {each.kv_blocks:,}",
            ]
        )  # fmt: skip
    header = [what, "holds", "longest gap ms", "simulated", "mean gap ms", "TTFT ms", "simulated", "KV blocks"]
    return [table(rows, header, left=2), *_intervals(at)] if rows else []


def _intervals(at: Checked | None) -> list[str]:
    """Return how sure the times of the answer are."""
    if at is None or at.level is None:
        return []
    named = {"longest gap": at.itl_interval_s, "mean gap": at.tpot_interval_s, "TTFT": at.ttft_interval_s}
    shown = [f"{what} {_ms(each[0])} to {_ms(each[1])}" for what, each in named.items() if each is not None]
    return [f"  {100 * at.level:.0f} % intervals at {at.value:,} [ms]: {', '.join(shown)}"]


def _ms(value: float | None) -> str:
    return "–" if value is None else milliseconds(value)


def _trade(plan: ChunkPlan) -> list[str]:
    if not plan.points:
        return []
    chosen = {each.value for each in (plan.at, plan.after) if each is not None}
    points = list(plan.points)
    step = max(len(points) // MOST_POINTS, 1)
    kept = [
        point
        for index, point in enumerate(points)
        if index % step == 0 or point.max_num_batched_tokens in chosen or point is points[-1]
    ]
    rows = [
        [
            count(point.max_num_batched_tokens) + (" ←" if plan.at and point.max_num_batched_tokens == plan.at.value else ""),
            milliseconds(point.itl_s), milliseconds(point.ttft_s), count(point.chunks), "" if point.keeps_up else "no",
        ]
        for point in kept
    ]  # fmt: skip
    late = ["keeps up"] if any(row[-1] for row in rows) else []
    header = ["tokens per step", "longest gap ms", "TTFT ms", "chunks", *late]
    return ["The trade-off:\n" + table([row[: len(header)] for row in rows], header)]


def _bounds(plan: SizePlan) -> list[str]:
    if not plan.bounds:
        return []
    rows = [[each.limit, "does not bind" if each.allows is None else count(each.allows)] for each in plan.bounds]
    return ["What each limit allows by itself:\n" + table(rows)]


def _marks(plan: GpuPlan) -> dict[str, str]:
    """Return warning of a row → the letter that stands beside its answer; of a `maybe` the line below the table tells."""
    texts = (text for each in plan.options if each.rung == "calibrated" for text in each.warnings)
    return {text: f"({_letters(index)})" for index, text in enumerate(dict.fromkeys(texts))}


def _letters(index: int) -> str:
    """Return a to z, aa, ab …"""
    return (_letters(index // 26 - 1) if index >= 26 else "") + chr(ord("a") + index % 26)


def _holds(option: GpuOption, marks: Mapping[str, str]) -> str:
    """Return whether a part holds the limits, with the letters of its warnings."""
    if not option.meets:
        return "no"
    answer = "yes" if option.rung == "calibrated" else "maybe"
    return " ".join([answer, *(marks[text] for text in option.warnings if text in marks)])


def _parts(plan: GpuPlan) -> str:
    rows, marks = [], _marks(plan)
    limited = any(each.max_model_len is not None for each in plan.options)
    priced = any(each.cost_per_hour is not None for each in plan.options)
    for each in plan.options:
        row = [
            each.gpu,
            count(each.gpus) + (f" (TP {each.tensor_parallel})" if 1 < each.gpus != each.tensor_parallel else ""),
            _holds(each, marks),
        ]
        row += [_ms(each.tpot_s), _ms(each.ttft_s), _ms(each.itl_s)]
        if priced:
            row += ["" if each.cost_per_hour is None else significant(each.cost_per_hour, 4)]
            row += ["" if each.cost_per_million_tokens is None else significant(each.cost_per_million_tokens, 3)]
        if limited:
            row += ["" if each.max_model_len is None else count(each.max_model_len)]
        rows.append([*row, each.why if len(each.why) <= _WHY else each.why[: _WHY - 1] + "…"])
    currency = f" [{plan.currency}]" if plan.currency else ""
    header = ["GPU", "number", "holds", "TPOT ms", "TTFT ms", "longest gap ms"]
    header += [f"per hour{currency}", f"per 1M tokens, all decoding{currency}"] if priced else []
    header += ["max_model_len"] if limited else []
    text = _left_end(rows, [*header, "why"])
    if limited:
        text += "\n  max_model_len: the longest --max-model-len with which vLLM starts, where it does not start with the model's own"
    if priced:
        text += "\n  per 1M tokens: of output, while all streams decode"
    if any(each.meets and each.rung == "roofline" for each in plan.options):
        text += "\n  maybe: nothing was measured on this part; at datasheet rates, a floor, it would hold the limits"
    return text


_WHY = 60


def _left_end(rows: Sequence[Sequence[str]], header: Sequence[str]) -> str:
    """Return a table whose last column is to the left."""
    width = max(len(row[-1]) for row in [*rows, header])
    return table([[*row[:-1], row[-1].ljust(width)] for row in rows], [*header[:-1], header[-1].ljust(width)])


def _fleets(plan: FleetPlan) -> list[str]:
    parts = []
    if plan.closed_form is not None:
        form = plan.closed_form
        parts.append(
            wrapped(
                f"Closed form: one server answers {significant(form.rate_per_server, 3)} requests a second "
                f"with {plural(form.running, 'request')} decoding (mean TPOT {seconds(form.tpot_s, 3)}), "
                f"so {plural(form.servers, 'server')} to begin with."
            )
        )
    if plan.runs:
        what = "requests" if plan.plan == "replicas" else "requests to decode"
        parts.append(
            f"Simulated, the same requests each time:\n{_runs(plan, plan.runs)}\n"
            + wrapped(f"  load: {what} per second, of those that {_by_whom(plan)}")
            + "\n  KV cache: the most in use on one server"
        )
    if plan.together is not None:
        both = [*([plan.together_before] if plan.together_before else []), plan.together]
        parts.append("As few servers that do both, for the same limits:\n" + _runs(plan, both))
    return parts


def _runs(plan: FleetPlan, runs: Sequence[FleetRun]) -> str:
    at = f"p{plan.limits.percentile:g}"
    rows = []
    for run in runs:
        chosen = " ←" if run in (plan.at, plan.together) else ""
        servers = count(run.servers) if run.prefill_servers is None else f"{run.prefill_servers} + {run.decode_servers}"
        rows.append(
            [
                servers + chosen, count(run.gpus), "yes" if run.meets else "no", _ms(run.ttft_s), _ms(run.tpot_s), _ms(run.itl_s),
                _s(run.e2e_s), count(run.output_tokens_per_s), _share(_asked(plan, run)), _share(run.kv_share),
                ", ".join(run.missed).ljust(4),
            ]
        )  # fmt: skip
    header = [
        "servers",
        "GPUs",
        "holds",
        f"TTFT {at} ms",
        f"TPOT {at} ms",
        f"ITL {at} ms",
        f"e2e {at} s",
        "tokens/s",
        "load",
        "KV cache",
        "missed",
    ]
    if all(_asked(plan, run) is None for run in runs):
        rows, header = [[*row[:8], *row[9:]] for row in rows], [*header[:8], *header[9:]]
    return table(rows, header, left=1)


def _answered(plan: FleetPlan) -> float:
    """Return the requests per second that one server answers."""
    assert plan.closed_form is not None
    return plan.rate_per_server or plan.closed_form.rate_per_server


def _by_whom(plan: FleetPlan) -> str:
    """Say where the rate of a server is from."""
    if plan.closed_form is None or _answered(plan) <= plan.closed_form.rate_per_server:
        return "the closed form gives so many servers"
    return (
        "the simulation gives so many servers (more than the closed form, which counts sequences at their full length)"
    )


def _counted(plan: FleetPlan, run: FleetRun) -> int | None:
    """Return the servers of a fleet that the closed form is about."""
    return run.servers if plan.plan == "replicas" else run.decode_servers


def _asked(plan: FleetPlan, run: FleetRun) -> float | None:
    """Return the rate as a share of what so many servers answer; None for servers that the closed form is not about."""
    servers = _counted(plan, run)
    if plan.closed_form is None or servers is None:
        return None
    return float(plan.workload["rate_per_s"] or 0) / (servers * _answered(plan))


def _share(value: float | None) -> str:
    return "–" if value is None else percent(value)


def _s(value: float | None) -> str:
    return "–" if value is None else significant(value, 3)
