"""Options of ``costmodel interfere``: which there are together, and what they mean."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from costmodel.checks import positive, whole
from costmodel.cli.options import Command, single
from costmodel.hardware.errors import InputError

if TYPE_CHECKING:
    from costmodel.validation.interference.records import Plan

MODEL_NAMES = ("gpu", "model", "tp", "ep", "dtype", "kv_dtype", "compute_dtype", "lora", "engine", "calibration")
"""Options of the prediction."""
OF_EXPERIMENTS = (
    *("streams", "context", "prompt", "every", "first", "duration", "baseline", "output", "chunk"),
    *("api", "served_model_name", "api_key_env", "timeout", "record"),
)
"""Options of what is run; a report has nothing of them."""
LEAST_BUDGET = 2048
"""vLLM's own token budget, on the smallest parts; one that is larger than a prompt needs changes nothing."""
LEAST_PLACES = 128
"""Sequences that every default server runs at once."""
INJECTED_AT_ONCE = 8
"""Places for injected prompts that queue."""


class Source(NamedTuple):
    """Where the tokens come from: one of the three.

    Attributes:
        serve: folder of a model that is served for the experiment.
        url: of a server that runs.
        records: of experiments that were.
    """

    serve: Path | None
    url: str | None
    records: tuple[Path, ...]


class Output(NamedTuple):
    """What is written where."""

    record: Path
    plot: Path | None
    figure: str
    as_json: bool
    force: bool


def predictable(command: Command) -> Command:
    """Let the options of the prediction have no default: without a GPU there is no prediction; goes above them."""
    for option in getattr(command, "__click_params__", ()):
        if option.name in ("gpu", "model"):
            option.default, option.show_default = None, False
            option.help += "  [default: no prediction]" if option.name == "gpu" else "  [default: what is served]"
        elif option.name == "pp":
            option.hidden = True  # refused with a reason
        elif option.name == "chunk":
            option.help = (
                "Token budget per step (max_num_batched_tokens) of the server that is started, or `engine` for vLLM's default; "
                "with --url, that of the server, if you know it.  [default: the prompt in one step]"
            )
    return command


def given(name: str) -> bool:
    """Tell whether an option was typed."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def take_source(options: dict[str, Any]) -> Source:
    """Take out where the tokens come from.

    Raises:
        InputError: none, several, or options of another one.
    """
    source = Source(options.pop("serve"), options.pop("url"), options.pop("records_read"))
    if sum(each not in (None, ()) for each in source) != 1:
        raise InputError("give one of --serve MODEL_DIR, --url URL and --from RECORD")
    if source.serve is None and options["server_flags"]:
        raise InputError("flags behind `--` are for `vllm serve`, which only --serve starts")
    if source.records:
        for name in OF_EXPERIMENTS:
            if given(name):
                raise InputError(f"--{name.replace('_', '-')} is for an experiment; --from reports on one that was")
    for name in ("random_weights", "start_timeout"):
        if source.serve is None and given(name):
            raise InputError(f"--{name.replace('_', '-')} is for --serve, which starts a server")
    if source.serve is not None and options["api_key_env"] is not None:
        raise InputError("--api-key-env is for --url; the server that --serve starts asks for no key")
    return source


def take_output(options: dict[str, Any]) -> Output:
    """Take out what is written where; refuse what cannot be written before any work is done."""
    record, plot, figure, as_json, force = (
        options.pop(name) for name in ("record", "plot", "figure", "as_json", "force")
    )
    if figure is not None and plot is None:
        raise InputError(f"--figure {figure} needs --plot FILE, where it is saved")
    if plot is not None:
        from costmodel.cli.figures.saving import check_target

        check_target(plot, force)
        if plot.resolve() == record.resolve():
            raise InputError(f"--plot and --record name the same file, {plot}")
    return Output(record, plot, figure or "gaps", as_json, force)


def take_prediction(options: dict[str, Any], source: Source) -> dict[str, Any] | None:
    """Take the options of the prediction, without a model where it is the one that the record has; None if none is asked for."""
    asked = any(given(name) for name in ("gpu", "calibration", "assume_efficiency"))
    taken = {name: options.pop(name) for name in MODEL_NAMES}
    taken = {name: single(name, value) if isinstance(value, list) else value for name, value in taken.items()}
    taken["assume_efficiency"] = options.pop("assume_efficiency")
    if options.pop("pp") != 1:
        raise InputError("pp: pipeline stages are not predicted here; leave --pp out")
    if not asked:
        if given("model"):
            raise InputError("--model is for the prediction, which needs a GPU as well: --gpu NAME")
        return None
    if not given("gpu"):
        taken["gpu"] = _gpu_of(taken["calibration"])
    if not given("model") and source.url is not None:
        raise InputError("the prediction needs the model that is served: --model NAME, or its config.json")
    served = str(source.serve) if source.serve is not None else None
    _check_prediction({**taken, "model": taken["model"] or served})
    return taken


def _gpu_of(calibration: str | None) -> str:
    """Return the GPU that a calibration is of."""
    if calibration is None or calibration == "none":
        raise InputError("the prediction needs a GPU: --gpu NAME")
    from costmodel.hardware.calibration import read_calibration

    return read_calibration(Path(calibration)).gpu


def _check_prediction(taken: dict[str, Any]) -> None:
    """Refuse what cannot be predicted before a server is bothered."""
    if taken["model"] is not None:
        from costmodel.prediction import predict

        predict(**{name: value for name, value in taken.items() if value is not None})


def make_plan(options: dict[str, Any], output: int) -> Plan:
    """Return what is to be run, with answers of so many tokens.

    Raises:
        InputError: a number that is out of range.
    """
    from costmodel.validation.interference.records import Plan

    duration = positive(options["duration"], "duration", 1e6)
    if options["output"] is not None:
        whole(options["output"], "output", 3)
    if (chunk := single("chunk", options["chunk"])) not in (None, "engine"):
        whole(chunk, "chunk", 1)
    first = options["first"]
    if not 0 <= first < duration:
        raise InputError(f"--first {first:g}: is not within the --duration of {duration:g} s")
    return Plan(
        streams=whole(single("streams", options["streams"]), "streams", 1, 10_000),
        context_tokens=whole(single("context", options["context"]), "context", 1),
        output_tokens=output,
        prompt_tokens=whole(single("prompt", options["prompt"]), "prompt", 1),
        every_s=positive(options["every"], "every", 1e6),
        first_s=first,
        duration_s=duration,
        baseline_s=positive(duration if options["baseline"] is None else options["baseline"], "baseline", 1e6),
    )


def read_key(name: str | None) -> str | None:
    """Return the key in an environment variable; it is never shown."""
    if name is None:
        return None
    value = os.environ.get(name, "").strip()
    if not value:
        raise InputError(f"--api-key-env {name}: there is no such environment variable, or it is empty")
    if not value.isascii() or not value.isprintable() or any(each in value for each in " '\"\\"):
        raise InputError(f"--api-key-env {name}: what it holds has characters that a key cannot have")
    return value


def serve_flags(folder: Path, options: dict[str, Any]) -> list[str]:
    """Return the flags of the server: those that were given, and those that the experiment needs."""
    from costmodel.validation.backends.vllm_server import has_tokenizer, known_flags

    flags = list(options["server_flags"])
    known = known_flags(flags)
    chunk = single("chunk", options["chunk"])
    if chunk is not None and "max_num_batched_tokens" in known:
        raise InputError("--chunk and --max-num-batched-tokens are the same; give one of them")
    prompt, streams = single("prompt", options["prompt"]), single("streams", options["streams"])
    if chunk != "engine" and "max_num_batched_tokens" not in known:
        flags += ["--max-num-batched-tokens", str(max(prompt + streams, LEAST_BUDGET) if chunk is None else chunk)]
    places = streams + INJECTED_AT_ONCE
    small = isinstance(chunk, int) and chunk < LEAST_BUDGET
    if "max_num_seqs" not in known and (small or places > LEAST_PLACES):
        flags += [
            "--max-num-seqs",
            str(min(places, chunk) if small else places),
        ]  # vLLM wants a place's token in every step
    if "served_model_name" not in known:
        flags += ["--served-model-name", folder.resolve().name]  # and not its path
    if options["random_weights"] and "load_format" not in known:
        flags += ["--load-format", "dummy"]
    if "skip_tokenizer_init" not in known and options["api"] == "tokens" and not has_tokenizer(folder):
        flags += ["--skip-tokenizer-init"]
    return flags
