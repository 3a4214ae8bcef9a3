"""The options of ``costmodel simulate``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from costmodel.cli.options import Values, calibration_options, deployment_options, one_value_each
from costmodel.cli.speculative_options import speculative_options

Command = TypeVar("Command", bound=Callable[..., Any])


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
            speculative_options,
            click.option(
                "--acceptance-draw",
                type=click.Choice(["random", "even"]),
                default="random",
                show_default=True,
                help="Accepted drafts by chance, or in every pass as many as their mean.",
            ),
            click.option("--acceptance-seed", type=int, default=0, show_default=True, help="Of that chance."),
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
