"""Speculative decoding and the prefix cache, as text in the report of a prediction."""

from __future__ import annotations

from costmodel.cli.text import count, gib, milliseconds, percent, plural, seconds, significant, size, table
from costmodel.documents import Prediction, Workload
from costmodel.speculation.documents import SpeculationInfo

ABOUT_THE_SAME = 0.01
"""Speedups nearer to 1 than this are called none."""


def speculation_text(item: Prediction) -> str:
    """Return what speculation does; nothing where it is not asked for."""
    info = item.speculation
    if info is None:
        return ""
    work = item.workload
    host = f", {milliseconds(info.host_s)} of the host" if info.host_s else ""
    rows = plural(info.tokens + 1, "row")
    lines = [
        f"Speculative decoding ({item.headline} rung): {info.draft}, {plural(info.tokens, 'token')} drafted per pass",
        f"  A pass takes {milliseconds(info.pass_s)} ms: {milliseconds(info.verify_s)} to verify {rows} per stream (a plain decode "
        f"step {milliseconds(info.plain_step_s)}), {milliseconds(info.draft_s)} to draft{host}.",
        f"  It gives {significant(info.accepted_length, 3)} tokens{_rate(info)}: TPOT {milliseconds(info.tpot_s)} ms, {_times(info)} "
        f"(floor {milliseconds(info.floor_tpot_s)} ms).",
        f"  Tokens come in bundles, one every {milliseconds(info.pass_s)} ms. {_best(info)}",
        f"  {_break_even(info, work)}",
    ]
    if info.spike_s is not None and info.spike_chunks is not None:
        lines.append(
            f"  The prompt's longest step takes {seconds(info.spike_s)} then, in {plural(info.spike_chunks, 'step')}: "
            f"every stream takes {plural(info.tokens + 1, 'token')} of the budget."
        )
    else:
        lines.append(
            f"  No prompt gets through: {plural(work.streams, 'stream')} × {info.tokens + 1} tokens fill a budget of "
            f"{count(work.chunk_tokens or 0)}; a budget of {count(work.streams * (info.tokens + 1) + 1)} or more lets one in."
        )
    if info.draft_weights_bytes:
        lines.append(
            f"  The draft takes {gib(info.draft_weights_bytes)} of weights per GPU, and {size(info.draft_kv_bytes_per_token)} of KV cache "
            "per token."
        )
    if len(info.by_tokens) > 1:
        cells = [
            [
                str(row.tokens),
                significant(row.accepted_length, 3),
                milliseconds(row.pass_s),
                milliseconds(row.tpot_s),
                f"{significant(row.speedup, 3)} ×",
            ]
            for row in info.by_tokens
        ]
        lines.append(table(cells, ["drafted", "tokens per pass", "pass ms", "TPOT ms", "speedup"]))
    return "\n".join(lines)


def speculation_cells(item: Prediction) -> list[str]:
    """Return TPOT, drafted tokens and speedup for a row of a comparison; nothing where speculation is not asked for."""
    info = item.speculation
    if info is None:
        return []
    return [milliseconds(info.tpot_s), str(info.tokens), f"{significant(info.speedup, 3)} ×"]


def prefix_text(item: Prediction) -> str:
    """Return what the prefix cache saves; nothing where it has nothing."""
    saved = item.prefix_cache
    if saved is None:
        return ""
    share = saved.cached_tokens / (saved.cached_tokens + saved.computed_tokens)
    return (
        f"Prefix cache: {plural(saved.cached_tokens, 'token')} of the prompt are there ({percent(share)}), "
        f"K and V of them are read and not computed.\n"
        f"  Left are {plural(saved.computed_tokens, 'token')}, which attend to all before them: prefill "
        f"{seconds(saved.prefill_s)} instead of {seconds(saved.prefill_without_cache_s)}, {percent(saved.saved_share)} saved."
    )


def _rate(info: SpeculationInfo) -> str:
    if info.acceptance is None:
        return ""
    return f" (acceptance {info.acceptance:g}{', assumed' if info.acceptance_assumed else ''})"


def _times(info: SpeculationInfo) -> str:
    if abs(info.speedup - 1) < ABOUT_THE_SAME:
        return "as without"
    if info.speedup > 1:
        return f"{significant(info.speedup, 3)} × as fast as without"
    return f"{significant(1 / info.speedup, 3)} × slower than without"


def _best(info: SpeculationInfo) -> str:
    if not info.best_tokens:
        return "Not to speculate is best here."
    if info.best_tokens == info.tokens:
        return f"{plural(info.tokens, 'drafted token')} per pass is the best number here."
    return f"Best is {plural(info.best_tokens, 'drafted token')} per pass: TPOT {milliseconds(info.best_tpot_s)} ms."


def _break_even(info: SpeculationInfo, work: Workload) -> str:
    where = f"with {plural(info.tokens, 'drafted token')} at context {count(work.context_tokens)}"
    budget = work.chunk_tokens
    if budget is not None and (info.tried_streams + 1) * (info.tokens + 1) > budget:
        where += f"; a budget of {count(budget)} has no room for more"
    if info.break_even_streams is None:
        return f"It pays at every batch up to {plural(info.tried_streams, 'stream')} {where}."
    if info.break_even_streams == 0:
        return f"It pays at no batch up to {plural(info.tried_streams, 'stream')} {where}."
    return f"It pays up to {plural(info.break_even_streams, 'stream')} {where}; with more, plain decoding is faster."
