"""The options of ``costmodel simulate``, and what they are made into: a server, pools, limits, and what is written where."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from costmodel.checks import choice, positive
from costmodel.cli.options import Values, calibration_options, deployment_options, one_value_each, single
from costmodel.hardware.errors import InputError

if TYPE_CHECKING:
    from costmodel.simulation.options import ServerOptions
    from costmodel.simulation.pools import Pools
    from costmodel.simulation.simulating import Limits

Command = TypeVar("Command", bound=Callable[..., Any])


class Variant(NamedTuple):
    """One of the simulations of a call."""

    chunk: int | str | None
    """Token budget; None for the default."""
    scheduler: str | None
    """One server's; None for the engine's own."""
    pools: Pools | None


SCHEDULERS = ("vllm", "sarathi", "prefill-first", "separate", "disaggregated")
"""What ``--scheduler`` takes. The last is made of servers of the first."""
DISAGGREGATED = SCHEDULERS[-1]

MOST_BANDWIDTH, MOST_LATENCY_MS = 1e9, 1e12
"""More is a slip of the keyboard [GB/s, ms]."""

MODEL_NAMES = (
    *("gpu", "model", "tp", "ep", "dtype", "kv_dtype", "compute_dtype"),
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


def _whole(*names: str, default: str | None = None, help: str) -> Callable[[Command], Command]:
    kind = Values("whole", several=False)
    return click.option(*names, type=kind, default=default, show_default=default is not None, help=help)


def server_options(command: Command) -> Command:
    """Add the options of model and GPU, and the flags of the server."""
    for option in reversed(
        (
            deployment_options,
            calibration_options,
            click.option(
                "--assume-efficiency",
                is_flag=True,
                help="For a GPU without a calibration: the efficiencies of its nearest measured relative, if there is one.",
            ),
            click.option(
                "--rung",
                type=click.Choice(["roofline", "calibrated"]),
                default=None,
                help="Step times at datasheet rates, or calibrated.  [default: calibrated where there is a calibration]",
            ),
            _whole("--max-num-seqs", help="Sequences that run at once.  [default: as vLLM on this GPU]"),
            _whole("--kv-tokens", help="Tokens that the KV cache holds.  [default: what memory leaves]"),
            _whole("--block-size", "block_tokens", default="16", help="Tokens of a KV block."),
            _whole("--max-model-len", help="Longest sequence, prompt and answer.  [default: the model's]"),
            click.option(
                "--enable-chunked-prefill/--no-enable-chunked-prefill",
                "chunked_prefill",
                default=True,
                show_default=True,
                help="Cut prompts that do not fit into the token budget; without, they wait until they fit whole.",
            ),
            _whole(
                "--long-prefill-token-threshold",
                default="0",
                help="Most tokens of one prompt per step beside other requests; 0 for no limit.",
            ),
            click.option(
                "--enable-prefix-caching/--no-enable-prefix-caching",
                "prefix_caching",
                default=True,
                show_default=True,
                help="Keep full blocks for prompts that begin alike, and for preempted requests.",
            ),
            click.option(
                "--async-scheduling/--no-async-scheduling",
                "asynchronous",
                default=None,
                help="Schedule a step while the one before it runs.  [default: on; off for interference]",
            ),
            click.option(
                "--scheduling-policy",
                "policy",
                type=click.Choice(["fcfs", "priority"]),
                default="fcfs",
                show_default=True,
                help="Who goes first among those who wait.",
            ),
            _whole("--prefill-gpus", help="With --scheduler disaggregated: servers that prefill.  [default: 1]"),
            _whole("--decode-gpus", help="The same: servers that decode.  [default: 1]"),
            click.option(
                "--kv-bandwidth",
                type=float,
                default=None,
                help="The same: bandwidth of the KV cache between them [GB/s].  [default: the GPUs' links]",
            ),
            click.option(
                "--kv-latency-ms", type=float, default=None, help="The same: latency of a transfer.  [default: 0]"
            ),
            click.option(
                "--watermark",
                type=float,
                default=0.0,
                show_default=True,
                help="Share of the KV cache that stays free when a request is admitted beside others.",
            ),
            click.option(
                "--reserve-full-prompt/--no-reserve-full-prompt",
                default=True,
                show_default=True,
                help="Admit a prompt only if all of it fits into free blocks.",
            ),
        )
    ):
        command = option(command)
    for parameter in getattr(command, "__click_params__", ()):
        if parameter.name == "pp":
            parameter.hidden = True  # refused with a reason
    return one_value_each(command)


def compared_options(default: str) -> Callable[[Command], Command]:
    """Return what adds the two options that take several values, each a simulation of its own.

    Args:
        default: token budget without the option, in words.
    """

    def add(command: Command) -> Command:
        budget = click.option(
            "--chunk",
            "--max-num-batched-tokens",
            "chunk",
            type=Values("chunk"),
            default=None,
            help="Token budget per step; `engine` for vLLM's default, `one-step` for the whole prompt in one step (interference).  "
            f"[default: {default}]",
        )
        scheduler = click.option(
            "--scheduler",
            type=Values("text"),
            default=None,
            help="`vllm` (its V1); `sarathi` (decodes, then chunks up to a budget, 512 by default); `prefill-first` (steps of whole "
            "prompts before all decodes); `separate` (steps of prompts and of decodes in turns); `disaggregated` (servers that prefill "
            "and servers that decode).  [default: vllm; prefill-first with --engine sglang]",
        )
        return budget(scheduler(command))

    return add


def fixed_step_options(command: Command) -> Command:
    """Add the two step times that stand for model and GPU."""
    for option in reversed(
        (
            click.option(
                "--decode-ms", type=float, default=None, help="Fixed time of a decode step, instead of model and GPU."
            ),
            click.option(
                "--prefill-ms",
                type=float,
                default=None,
                help="Fixed time of a step with a whole prompt, the longest one; shorter ones and chunks take their share, "
                "a decode step at least.",
            ),
        )
    ):
        command = option(command)
    return command


def output_options(figures: Sequence[str]) -> Callable[[Command], Command]:
    """Return what adds limits and output; the first of the figures is the default."""

    def add(command: Command) -> Command:
        for option in reversed(
            (
                click.option("--ttft-slo-ms", type=float, default=None, help="Limit on the TTFT of a good request."),
                click.option("--tpot-slo-ms", type=float, default=None, help="Limit on its TPOT."),
                click.option("--e2e-slo-ms", type=float, default=None, help="Limit on its end-to-end latency."),
                click.option(
                    "--slo-share",
                    type=float,
                    default=None,
                    help="Exit with 1 if fewer than this share of the requests are good, e.g. 0.95.",
                ),
                click.option(
                    "--stall-factor",
                    type=float,
                    default=3.0,
                    show_default=True,
                    help="A gap of more than so many medians is a stall.",
                ),
                click.option("--stall-ms", type=float, default=None, help="Count gaps longer than this as well."),
                click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else."),
                click.option(
                    "--requests-file",
                    type=click.Path(path_type=Path),
                    default=None,
                    help="Write a table of all requests into this .csv or .parquet.",
                ),
                click.option(
                    "--plot",
                    type=click.Path(path_type=Path),
                    default=None,
                    help="Draw a figure into this .png, .svg or .pdf.",
                ),
                click.option(
                    "--figure",
                    type=click.Choice(figures),
                    default=None,
                    help=f"Which figure --plot draws.  [default: {figures[0]}]",
                ),
                click.option("--force", is_flag=True, help="Overwrite the files that are written."),
            )
        ):
            command = option(command)
        return command

    return add


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
    from costmodel.simulation.simulating import Limits

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
    chunks = options.pop("chunk") or [None]
    schedulers = options.pop("scheduler") or [None]
    for name in schedulers:
        if name is not None:
            choice(name, SCHEDULERS, "scheduler")
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
    taken: dict[str, Any] = {}
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
