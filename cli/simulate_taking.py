"""What the options of ``costmodel simulate`` are made into: a server, pools, limits, and what is written where."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from costmodel.checks import choice, positive
from costmodel.cli.options import single
from costmodel.cli.speculative_options import take_speculation
from costmodel.hardware.errors import InputError
from costmodel.simulation.settings import DISAGGREGATED, SCHEDULERS

if TYPE_CHECKING:
    from costmodel.simulation.options import ServerOptions
    from costmodel.simulation.pools import Pools
    from costmodel.simulation.running import Limits


class Variant(NamedTuple):
    """One of the simulations of a call."""

    chunk: int | str | None
    """Token budget; None for the default."""
    scheduler: str | None
    """One server's; None for the engine's own."""
    pools: Pools | None


MOST_BANDWIDTH, MOST_LATENCY_MS = 1e9, 1e12
"""More is a slip of the keyboard [GB/s, ms]."""

MODEL_NAMES = (
    *("gpu", "model", "tp", "ep", "dtype", "kv_dtype", "compute_dtype", "lora"),
    *("engine", "calibration", "assume_efficiency", "rung"),
)
"""Options that say how long a step takes, and have no say where the times are fixed."""

FLAG_NAMES = (
    *("max_num_seqs", "kv_tokens", "block_tokens", "max_model_len", "chunked_prefill", "long_prefill_token_threshold"),
    *("prefix_caching", "asynchronous", "policy", "watermark", "reserve_full_prompt"),
)
"""Options of the server that are passed on as they are."""


@dataclass(frozen=True, slots=True)
class Output:
    """What is written where.

    Attributes:
        as_json: one document on stdout.
        requests_file: table of all requests; None for none.
        plot, figure: file and kind of the figure; None for none.
        force: replace files.
        slo_share: least share of good requests; None for no verdict.
    """

    as_json: bool
    requests_file: Path | None
    plot: Path | None
    figure: str
    force: bool
    slo_share: float | None


def take_output(options: dict[str, Any], default: str) -> Output:
    """Take what is written where out of the options; refuse what cannot be written before any work is done."""
    names = ("as_json", "requests_file", "plot", "figure", "force", "slo_share")
    as_json, requests_file, plot, figure, force, share = (options.pop(name) for name in names)
    if figure is not None and plot is None:
        raise InputError(f"--figure {figure} needs --plot FILE, where it is saved")
    if share is not None and not 0 < share <= 1:
        raise InputError(f"slo-share must be a share above 0 and at most 1, not {share:g}")
    if share is not None and not any(options[f"{name}_slo_ms"] for name in ("ttft", "tpot", "e2e")):
        raise InputError(
            "--slo-share needs a limit that makes a request good: --ttft-slo-ms, --tpot-slo-ms or --e2e-slo-ms"
        )
    if plot is not None:
        from costmodel.cli.figures.saving import check_target

        check_target(plot, force)
    if requests_file is not None:
        from costmodel.cli.simulate_table import check_table

        check_table(requests_file, force)
        if plot is not None and plot.resolve() == requests_file.resolve():
            raise InputError(f"--plot and --requests-file name the same file, {plot}")
    return Output(as_json, requests_file, plot, figure or default, force, share)


def check_output(output: Output, count: int, experiment: bool) -> None:
    """Refuse what cannot be written of so many simulations, before any work is done.

    Args:
        output: what is to be written.
        count: simulations.
        experiment: with a baseline and injections; otherwise loads or traces.
    """
    if count > 1 and output.requests_file is not None:
        raise InputError(f"--requests-file takes the requests of one simulation, not of {count}; give one value each")
    if output.plot is not None and count > 1:
        from costmodel.cli.simulate_figures import check_count

        check_count(output.figure, count, experiment)


def take_limits(options: dict[str, Any]) -> Limits:
    """Take the limits out of the options."""
    from costmodel.simulation.running import Limits

    def limit(name: str) -> float | None:
        value = options.pop(name)
        return None if value is None else positive(value, name.replace("_", "-")) / 1e3

    return Limits(
        ttft=limit("ttft_slo_ms"),
        tpot=limit("tpot_slo_ms"),
        e2e=limit("e2e_slo_ms"),
        stall_factor=positive(options.pop("stall_factor"), "stall-factor"),
        stall=limit("stall_ms"),
    )


def take_variants(options: dict[str, Any]) -> list[Variant]:
    """Take what is compared out of the options: every token budget with every scheduler.

    Raises:
        InputError: an unknown scheduler, or options that contradict each other.
    """
    given = options.pop("chunk")
    chunks = (
        ["one-step" if chunk is None else chunk for chunk in given] if given else [None]
    )  # None is no option at all
    schedulers = options.pop("scheduler") or [None]
    for name in schedulers:
        if name is not None:
            choice(name, (*SCHEDULERS, DISAGGREGATED), "scheduler")
    pools = _take_pools(options, DISAGGREGATED in schedulers)
    return [
        Variant(chunk, *(("vllm", pools) if scheduler == DISAGGREGATED else (scheduler, None)))
        for scheduler in schedulers
        for chunk in chunks
    ]


def _take_pools(options: dict[str, Any], disaggregated: bool) -> Pools | None:
    """Take the pools out of the options; None for servers that do both."""
    from costmodel.simulation.pools import Pools

    names = ("prefill_gpus", "decode_gpus", "kv_bandwidth", "kv_latency_ms")
    prefill, decode, bandwidth, latency = (
        single(name, value) if isinstance(value := options.pop(name), list) else value for name in names
    )
    if not disaggregated:
        given = [
            name for name, value in zip(names, (prefill, decode, bandwidth, latency), strict=True) if value is not None
        ]
        if given:
            raise InputError(
                f"{flag(given[0])} is for --scheduler disaggregated, where some servers prefill and others decode"
            )
        return None
    if bandwidth is not None and options.get("decode_ms") is not None:
        raise InputError(
            "--kv-bandwidth needs a model, whose bytes travel; with fixed step times only --kv-latency-ms counts"
        )
    return Pools(
        prefill=1 if prefill is None else prefill,
        decode=1 if decode is None else decode,
        bandwidth=None if bandwidth is None else positive(bandwidth, "kv-bandwidth", MOST_BANDWIDTH) * 1e9,
        latency=0.0 if not latency else _latency(latency) / 1e3,
    ).checked()


def _latency(value: float) -> float:
    """Return a latency in milliseconds that is not 0, or raise :class:`InputError`."""
    if value < 0 or math.isnan(value):
        raise InputError(f"kv-latency-ms must be a number, 0 or above, not {value:g}")
    return positive(value, "kv-latency-ms", MOST_LATENCY_MS)


def take_server(options: dict[str, Any]) -> ServerOptions:
    """Take model, GPU and flags out of the options; what is compared is left out.

    Args:
        options: of the command.

    Raises:
        InputError: options that contradict each other.
    """
    if (stages := options.pop("pp")) != 1:
        raise InputError(f"pp {stages}: pipeline stages are not simulated; divide the model with --tp")
    decode, prefill = options.pop("decode_ms", None), options.pop("prefill_ms", None)
    taken: dict[str, Any] = _take_drafts(options)
    for name in (*MODEL_NAMES, *FLAG_NAMES):
        value = options.pop(name)
        taken[name] = single(name.replace("_", "-"), value) if isinstance(value, list) else value
    if decode is not None or prefill is not None:
        _refuse_beside_fixed_times(
            next(name for name, value in (("decode_ms", decode), ("prefill_ms", prefill)) if value is not None)
        )
        for name in MODEL_NAMES:
            del taken[name]
        for name, value in (("decode", decode), ("prefill", prefill)):
            taken[f"{name}_s"] = None if value is None else positive(value, f"{name}-ms") / 1e3
    elif taken["rung"] == "roofline" and (taken["assume_efficiency"] or taken["calibration"] not in (None, "none")):
        other = "assume_efficiency" if taken["assume_efficiency"] else "calibration"
        raise InputError(f"--rung roofline takes datasheet rates, {flag(other)} others; leave out one of them")
    if taken["asynchronous"] is None:
        del taken["asynchronous"]
    return taken  # type: ignore[return-value]


def _take_drafts(options: dict[str, Any]) -> dict[str, Any]:
    """Take speculative decoding out of the options; nothing where it is not asked for."""
    draw, seed = options.pop("acceptance_draw"), options.pop("acceptance_seed")
    speculation = take_speculation(options)
    if speculation is None:
        context = click.get_current_context()
        for name in ("acceptance_draw", "acceptance_seed"):
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                raise InputError(f"{flag(name)} is for speculative decoding, which --draft-model asks for")
        return {}
    return {"speculation": speculation, "acceptance_draw": draw, "acceptance_seed": seed}


def _refuse_beside_fixed_times(fixed: str) -> None:
    """Refuse options of model and GPU that were given beside fixed step times."""
    context = click.get_current_context()
    for name in MODEL_NAMES:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise InputError(
                f"{flag(fixed)} fixes the time of a step, where {flag(name)} has no say; leave out one of them"
            )


def flag(name: str) -> str:
    """Return an option as people type it."""
    return "--" + name.replace("_", "-")
