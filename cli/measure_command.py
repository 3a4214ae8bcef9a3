"""``costmodel measure``."""

from __future__ import annotations

import os
import re
import shlex
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from costmodel.cli.ending import ended_as_by_ctrl_c
from costmodel.cli.figures.saving import check_target, save_figure
from costmodel.cli.files import check_writable
from costmodel.cli.options import echo_json
from costmodel.cli.text import count, percent, plural, table
from costmodel.hardware.errors import InputError
from costmodel.hardware.reading import shown_path

if TYPE_CHECKING:
    from costmodel.validation.backends.asked import Asked
    from costmodel.validation.measurements.files import Content
    from costmodel.validation.measurements.measuring import Backend, Progress
    from costmodel.validation.measurements.types import Measurement

INTERRUPTED = 130
"""Exit code after Ctrl-C."""
MODELS = "MODEL (a folder or a name), or --random-weights CONFIG, such as --random-weights Llama-3.2-1B"
OF_ENGINES = (
    *("minutes", "resume", "backend", "max_num_batched_tokens", "max_num_seqs", "max_model_len"),
    *("gpu_memory_utilization", "enforce_eager", "seed", "clock"),
)
"""Options of the engine that is measured; a log has one of its own."""
LONGEST_MINUTES = 10_080
"""A week."""
CLEAR = "\r\x1b[K"
"""Goes back to the beginning of a line of a terminal, and empties it."""


@click.command("measure", epilog="What is measured and how: docs/measure-your-server.md; the file: docs/json.md.")
@click.argument("model", required=False)
@click.option(
    "--random-weights",
    metavar="CONFIG",
    default=None,
    help="Make up the weights of this configuration: a config.json, its folder, or a preset (`costmodel models list`).",
)
@click.option(
    "--backend",
    type=click.Choice(["vllm", "torch"]),
    default="vllm",
    show_default=True,
    help="vLLM in this process, or a plain model of torch alone, for parts and machines without vLLM.",
)
@click.option(
    "--from-log",
    type=click.Path(path_type=Path),
    default=None,
    help="Measure nothing: read the iteration details in the log of a vLLM server (--enable-logging-iteration-details) that served MODEL.",
)
@click.option(
    "--minutes", type=float, default=3.0, show_default=True, help="Time to measure, once the engine has started [min]."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=None,
    help="File of the measurement, lines of JSON.  [default: measurement-MODEL.jsonl; of a log, .json]",
)
@click.option("--resume", is_flag=True, help="Go on with the file, if there is one, where an earlier run ended.")
@click.option("--force", is_flag=True, help="Replace the files that are written.")
@click.option("--gpu", default=None, help="Profile of the part, by name or file.  [default: by the device's name]")
@click.option("--tp", type=int, default=1, show_default=True, help="Tensor-parallel size.")
@click.option("--dtype", default=None, help="Dtype of the activations: bf16, fp16, fp32.  [default: the checkpoint's]")
@click.option("--kv-dtype", default=None, help="Dtype of the KV cache, as vLLM's --kv-cache-dtype.  [default: auto]")
@click.option("--max-num-batched-tokens", type=int, default=None, help="Token budget of a step.  [default: vLLM's]")
@click.option("--max-num-seqs", type=int, default=None, help="Sequences that run at once.  [default: vLLM's]")
@click.option("--max-model-len", type=int, default=None, help="Longest sequence.  [default: the model's]")
@click.option("--gpu-memory-utilization", type=float, default=None, help="As vLLM's.  [default: vLLM's]")
@click.option("--enforce-eager", is_flag=True, help="No CUDA graphs, no compilation.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of prompts and random weights.")
@click.option(
    "--clock",
    type=click.Choice(["wall", "cpu"]),
    default=None,
    help="What is counted.  [default: CPU time where one thread of a CPU computes everything, else wall time]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
@click.option(
    "--plot", type=click.Path(path_type=Path), default=None, help="Draw what was measured into this .png, .svg or .pdf."
)
def command(**options: Any) -> int:
    """Measure the steps of a real engine: decodes, prompts, chunks on a context, and prompts beside decodes.

    MODEL is a folder or the name of a model; --random-weights needs no weights. Steps are run in this process, the most important first,
    and every one is in the file at once: Ctrl-C, the end of the time or a crash leave what was measured before, and --resume goes on with
    it, to more steps and steadier medians if there is more time.
    """
    _check(options)
    suffix = ".jsonl" if options["from_log"] is None else ".json"
    out = options["out"] or Path(_file_name(options["random_weights"] or options["model"], suffix))
    if options["plot"] is not None:
        check_target(options["plot"], options["force"])
        if options["plot"].resolve() == out.resolve():
            raise InputError(f"--plot and --out name the same file, {out}")
    if options["from_log"] is not None:
        return _read_log(options, out, _typed(click.get_current_context()))
    before = _before(out, options["resume"], options["force"])
    if before is not None and _is_whole(before, options["minutes"] * 60):
        _report(out, options, None)
        click.echo(
            f"{shown_path(out)} is complete: nothing is left to measure; more --minutes plan more steps", err=True
        )
        return 0
    with ended_as_by_ctrl_c():
        progress = _measure(options, out, before, _asked(options, _typed(click.get_current_context())))
        _report(out, options, progress)
    return INTERRUPTED if progress.interrupted else 0


def _check(options: dict[str, Any]) -> None:
    """Refuse what can be refused before anything is started."""
    from costmodel.validation.backends.asked import check_positive, short_dtype

    named = [name for name in ("model", "random_weights") if options[name] is not None]
    if len(named) != 1:
        raise InputError(f"name one model: {MODELS}")
    name = options[named[0]]
    if not name.strip():
        raise InputError(f"the model has no name; {MODELS}")
    if "://" in name:  # not shown, as addresses may hold a password
        raise InputError(f"the model is an address, and nothing is downloaded from one; {MODELS}")
    if not 0 < options["minutes"] <= LONGEST_MINUTES:
        raise InputError(f"--minutes must be more than 0 and at most {LONGEST_MINUTES:,}, not {options['minutes']:g}")
    if options["resume"] and options["force"]:
        raise InputError("--resume goes on with the file and --force replaces it; give one of them")
    share = options["gpu_memory_utilization"]
    if share is not None and not 0 < share <= 1:
        raise InputError(f"--gpu-memory-utilization must be in (0, 1], not {share:g}")
    names = ("tp", "max_num_batched_tokens", "max_num_seqs", "max_model_len")
    check_positive(**{name: options[name] for name in names})
    short_dtype(options["dtype"])
    if options["backend"] == "torch" and options["model"] is not None:
        raise InputError("--backend torch has no weights to load; give the model as --random-weights CONFIG")
    if options["backend"] == "torch" and options["tp"] != 1:
        raise InputError("--backend torch measures one device; --tp is for vLLM")


def _file_name(model: str, suffix: str) -> str:
    """Return the name of the file where none is given."""
    path = Path(model)
    name = path.parent.name if path.name == "config.json" else path.name
    kept = re.sub(r"[^A-Za-z0-9._-]+", "-", name.removesuffix(".json")).strip("-.")
    return f"measurement-{kept or 'model'}{suffix}"


def _typed(ctx: click.Context) -> str:
    """Return the command as it was typed, by the names of its options."""
    words = ["costmodel", "measure"]
    for parameter in ctx.command.params:
        value = ctx.params.get(parameter.name or "")
        if ctx.get_parameter_source(parameter.name or "") is not click.core.ParameterSource.COMMANDLINE:
            continue
        if isinstance(parameter, click.Option):
            words += [parameter.opts[0]] if parameter.is_flag else [parameter.opts[0], str(value)]
        elif value is not None:
            words.append(str(value))
    return shlex.join(words)


def _asked(options: dict[str, Any], typed: str) -> Asked:
    from costmodel.validation.backends.asked import Asked

    names = (
        *("dtype", "kv_dtype", "max_num_batched_tokens", "max_model_len", "max_num_seqs", "gpu_memory_utilization"),
        *("enforce_eager", "seed", "gpu", "clock"),
    )
    return Asked(
        model=options["random_weights"] or options["model"],
        random_weights=options["random_weights"] is not None,
        tensor_parallel=options["tp"],
        command=typed,
        **{name: options[name] for name in names},
    )


def _before(out: Path, resume: bool, force: bool) -> Content | None:
    """Return what an earlier run left in the file; None if the file is to be a new one.

    Raises:
        InputError: there is a file, and neither ``resume`` nor ``force``; or it is no measurement.
    """
    from costmodel.validation.measurements.files import is_cut_header, read_content

    if not resume or not out.exists():
        try:
            check_writable(out, force)
        except InputError as error:
            if out.is_file() and not force:
                raise InputError(f"{out} exists; --resume goes on with it, --force replaces it") from None
            raise error
        return None
    return None if is_cut_header(out) else read_content(out)


def _is_whole(content: Content, seconds: float) -> bool:
    """Tell whether a file has all steps of a plan for so much time [s]; of one that does not say its time, if none was asked for."""
    if not content.complete:
        return False
    if content.planned_s is None:
        source = click.get_current_context().get_parameter_source("minutes")
        return source is not click.core.ParameterSource.COMMANDLINE
    return seconds <= content.planned_s


def _measure(options: dict[str, Any], out: Path, before: Content | None, asked: Asked) -> Progress:
    """Start the engine, measure into the file, and end the engine whatever happens."""
    from costmodel.validation.measurements.files import Writer, is_cut_header
    from costmodel.validation.measurements.measuring import check_same, measure

    shows = sys.stderr.isatty()
    with ExitStack() as stack:
        stack.enter_context(_stdout_kept_clean())
        if shows:
            click.echo(f"starting {options['backend']}", err=True)
        engine = _start(options["backend"], asked)
        stack.callback(engine.close)
        header = engine.header()
        if before is not None:
            check_same(before.header, header, shown_path(out))
        elif options["force"] or (options["resume"] and is_cut_header(out)):
            out.unlink(missing_ok=True)  # only now that there is something to put in its place
        writer = stack.enter_context(Writer(out, None if before is not None else header))
        watch = _watch() if shows else None
        progress = measure(engine, writer, options["minutes"] * 60, before.samples if before else (), watch)
        if shows:
            click.echo(CLEAR, err=True, nl=False)
    return progress


def _start(backend: str, asked: Asked) -> Backend:
    if backend == "torch":
        from costmodel.validation.backends.torch_engine import TorchEngine

        return TorchEngine(asked)
    from costmodel.validation.backends.vllm_engine import VllmEngine

    return VllmEngine(asked)


@contextmanager
def _stdout_kept_clean() -> Iterator[None]:
    """Let what engines print, also from C, go to stderr: stdout is for the report; their warnings are about their own code."""
    sys.stdout.flush()
    try:
        saved = os.dup(1)
    except OSError:
        saved = -1
    try:
        if saved >= 0:
            os.dup2(2, 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if saved >= 0:
            os.dup2(saved, 1)
            os.close(saved)


def _watch() -> Callable[[Progress], None]:
    """Return what shows the progress on a terminal."""

    def show(progress: Progress) -> None:
        left = max(progress.deadline - time.monotonic(), 0)
        text = f"{progress.measured} of {len(progress.points)} steps, {progress.steady} steady; {left:,.0f} s left: {progress.now}"
        click.echo(CLEAR + text[:100], err=True, nl=False)

    return show


def _read_log(options: dict[str, Any], out: Path, typed: str) -> int:
    """Make a measurement of a server's log."""
    from costmodel.cli.files import write_atomically
    from costmodel.validation.measurements.log_lines import measurement_from_log

    if options["model"] is None:
        raise InputError("--from-log needs the MODEL that was served; its weights are not needed, its config.json is")
    context = click.get_current_context()
    for name in OF_ENGINES:
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise InputError(f"--{name.replace('_', '-')} is for measuring; --from-log reads what a server wrote")
    check_writable(out, options["force"])
    found = measurement_from_log(
        options["from_log"],
        options["model"],
        options["gpu"],
        options["dtype"],
        options["kv_dtype"],
        options["tp"],
        typed,
    )
    write_atomically(out, found.model_dump_json(by_alias=True, indent=2) + "\n", options["force"])
    _report(out, options, None)
    return 0


def _report(out: Path, options: dict[str, Any], progress: Progress | None) -> None:
    """Print what is in the file, and draw it."""
    from costmodel.validation.measurements.files import read_measurement

    found = read_measurement(out)
    if options["as_json"]:
        echo_json(found)
    else:
        click.echo(_text(found, out, options["gpu"]))
    if progress is not None and progress.interrupted:
        click.echo(f"interrupted: what was measured is in {shown_path(out)}; --resume goes on with it", err=True)
    elif progress is not None and not found.complete:
        total = len(progress.points)
        click.echo(
            f"the time ended with {progress.measured} of {total} steps measured; --resume goes on with {shown_path(out)}",
            err=True,
        )
    if options["plot"] is not None:
        from costmodel.cli.measure_figure import draw

        save_figure(draw(found), options["plot"], options["force"])
        click.echo(f"wrote {options['plot']}", err=True)


def _text(found: Measurement, out: Path, gpu: str | None) -> str:
    machine, model = found.machine, found.model
    device = machine.device if machine.count == 1 else f"{machine.count} × {machine.device}"
    profile = machine.profile or "no profile; `costmodel gpus probe` makes one"
    clock = "CPU time" if found.clock == "cpu" else "wall time"
    lines = [
        f"{model.name} ({model.dtype}{', random weights' if model.random_weights else ''}) on {device} ({profile})",
        f"{found.engine.name} {found.engine.version}; {clock}; {found.date}",
        "",
    ]
    rows = []
    for purpose in dict.fromkeys(step.purpose for step in found.steps):
        steps = [step for step in found.steps if step.purpose == purpose]
        times = [step.seconds * 1e3 for step in steps]
        spread = statistics.median(step.spread / step.seconds for step in steps)
        rows.append(
            [
                purpose,
                count(len(steps)),
                count(sum(step.held_out for step in steps)),
                count(sum(step.repeats for step in steps)),
                f"{min(times):.4g}",
                f"{max(times):.4g}",
                percent(spread),
            ]
        )
    header = ["steps", "kinds", "held out", "repeats", "shortest ms", "longest ms", "spread"]
    lines.append(table(rows, header) if rows else "nothing was measured")
    if machine.throttled:
        lines.append(f"\nwarning: the clocks were held back while measuring: {', '.join(machine.throttled)}")
    lines += [f"note: {note}" for note in found.notes[:10]]
    if len(found.notes) > 10:
        lines.append(f"note: {plural(len(found.notes) - 10, 'more note')} in the file")
    part = f" --gpu {shlex.quote(gpu)}" if gpu else ""
    state = "complete" if found.complete else "partial"
    lines.append(f"\n{shown_path(out)}: {state}; next: costmodel fit {shlex.quote(str(out))}{part} --output FILE.toml")
    return "\n".join(lines)
