"""``costmodel plan memory``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from costmodel.cli.options import Values, deployment_options, echo_json, one_value_each, single
from costmodel.cli.plan_memory_report import report
from costmodel.hardware.errors import InputError
from costmodel.hardware.shipped import ENGINES
from costmodel.memory.documents import MemoryPlan
from costmodel.memory.planning import plan_memory

GIB = 2**30
FIGURES = ("gpus", "dtypes")


@click.command("memory")
@one_value_each
@deployment_options
@click.option(
    "--engine", type=click.Choice(ENGINES), default="vllm", show_default=True, help="Whose rule divides the memory."
)
@click.option("--engine-version", default=None, help="Release of vLLM, e.g. 0.11.0.  [default: 0.32]")
@click.option(
    "--max-num-batched-tokens",
    "--chunk",
    "max_num_batched_tokens",
    type=Values("tokens", several=False),
    default=None,
    help="Tokens per step (SGLang: chunked_prefill_size, TensorRT-LLM: max_num_tokens).  [default: the engine's on this GPU]",
)
@click.option(
    "--max-num-seqs",
    type=Values("whole", several=False),
    default=None,
    help="Sequences at once.  [default: the engine's on this GPU]",
)
@click.option(
    "--max-model-len",
    type=Values("tokens", several=False),
    default=None,
    help="Longest sequence.  [default: what the model allows]",
)
@click.option(
    "--gpu-memory-utilization",
    "--mem-fraction-static",
    "--kv-cache-free-gpu-memory-fraction",
    "gpu_memory_utilization",
    type=float,
    default=None,
    help="Share of the GPU, as the engine means it.  [default: the engine's]",
)
@click.option("--block-size", type=int, default=None, help="Tokens per KV block.  [default: the engine's]")
@click.option("--enforce-eager", is_flag=True, help="No CUDA graphs.")
@click.option(
    "--disable-hybrid-kv-cache-manager",
    "disable_hybrid",
    is_flag=True,
    help="Windowed layers keep every token.",
)
@click.option(
    "--kv-cache-memory-gib",
    type=float,
    default=None,
    help="Size of the KV cache in GiB (2³⁰ bytes) instead of what is left; on a CPU VLLM_CPU_KVCACHE_SPACE.",
)
@click.option(
    "--draft-model",
    default=None,
    help="Speculative decoding: what is held beside the model: `eagle`, `eagle3`, `mtp`, `ngram`, or another model.",
)
@click.option(
    "--speculative-tokens",
    type=int,
    default=None,
    help="Tokens drafted per pass: recurrent layers keep a state for each.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
@click.option("--plot", type=click.Path(), default=None, help="Draw a figure into this .png, .svg or .pdf.")
@click.option(
    "--figure", type=click.Choice(FIGURES), default=None, help="Bars by number of GPUs or by dtype.  [default: gpus]"
)
@click.option("--force", is_flag=True, help="Overwrite the file that --plot names.")
def command(as_json: bool, plot: str | None, figure: str | None, force: bool, **options: Any) -> int:
    """What uses the memory of a GPU, and how many sequences fit beside it: by the engine's own start-up rule.

    Exit code 1 if the engine would not start, with the nearest settings with which it does.
    """
    if figure is not None and plot is None:
        raise InputError(f"--figure {figure} needs --plot FILE, where it is saved")
    if plot is not None:
        from costmodel.cli.figures.saving import check_target

        check_target(Path(plot), force)
    asked = _take(options)
    plan = plan_memory(**asked)
    if plot is not None:
        from costmodel.cli.plan_memory_figures import draw

        draw(figure or "gpus", plan, asked, Path(plot), force)
        click.echo(f"wrote {plot}", err=True)
    _show(plan, as_json)
    return 0 if plan.memory.fits else 1


def _take(options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of :func:`plan_memory` from the options."""
    several = ("model", "gpu", "tp", "dtype", "max_num_batched_tokens", "max_num_seqs", "max_model_len")
    asked = {
        name: single(name.replace("_", "-"), options[name]) if name in several else options[name] for name in options
    }
    asked["hybrid_kv_cache"] = not asked.pop("disable_hybrid")
    given = asked.pop("kv_cache_memory_gib")
    if given is not None:
        if not 0 < given < 10**6:
            raise InputError(f"kv-cache-memory-gib must be above zero and below a million, not {given:g}")
        asked["kv_cache_memory_bytes"] = int(given * GIB)
    return asked


def _show(plan: MemoryPlan, as_json: bool) -> None:
    if as_json:
        echo_json(plan)
    else:
        click.echo(report(plan))
