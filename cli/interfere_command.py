"""``costmodel interfere``: the long-prompt experiment on a live server."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from costmodel.checks import positive, whole
from costmodel.cli.files import check_writable
from costmodel.cli.interfere_progress import Line
from costmodel.cli.options import (
    calibration_options,
    deployment_options,
    echo_json,
    load_options,
    one_value_each,
    single,
)
from costmodel.hardware.errors import InputError

if TYPE_CHECKING:
    from costmodel.validation.backends.vllm_server import Running
    from costmodel.validation.interference.client import Client
    from costmodel.validation.interference.comparing import Compare
    from costmodel.validation.interference.records import Plan, Record
    from costmodel.validation.interference.summary import Interference

FIGURES = ("gaps", "percentiles", "timeline")
INTERRUPTED = 130
DEFAULT_RECORD = Path("interference.jsonl")
MODEL_NAMES = ("gpu", "model", "tp", "ep", "dtype", "kv_dtype", "compute_dtype", "engine", "calibration")
"""Options of the prediction."""


class Source(NamedTuple):
    """Where the tokens come from: one of the three.

    Attributes:
        serve: folder of a model that is served for the experiment.
        url: of a server that runs.
        record: of an experiment that was.
    """

    serve: Path | None
    url: str | None
    record: Path | None


class Output(NamedTuple):
    """What is written where."""

    record: Path
    plot: Path | None
    figure: str
    as_json: bool
    force: bool


@click.command(
    "interfere",
    epilog="Flags of `vllm serve` come behind `--`: costmodel interfere --serve MODEL_DIR -- --dtype float32 --enforce-eager",
)
@click.option(
    "--serve",
    type=click.Path(path_type=Path),
    default=None,
    metavar="MODEL_DIR",
    help="Start `vllm serve` on this folder for the experiment, and stop it afterwards.",
)
@click.option("--url", default=None, help="Attach to this OpenAI-compatible server, e.g. http://localhost:8000.")
@click.option(
    "--from",
    "record_read",
    type=click.Path(path_type=Path),
    default=None,
    metavar="RECORD",
    help="Report on a record that is there; no server is asked.",
)
@load_options
@click.option("--every", type=float, default=10.0, show_default=True, help="Seconds from one injection to the next.")
@click.option("--first", type=float, default=5.0, show_default=True, help="Time of the first injection [s].")
@click.option("--duration", type=float, default=40.0, show_default=True, help="Length of the run with injections [s].")
@click.option("--baseline", type=float, default=None, help="Length of the run without [s].  [default: --duration]")
@click.option(
    "--output",
    type=int,
    default=None,
    help="Tokens of an answer of a stream; then it begins a new one.  [default: as many as the server takes]",
)
@click.option(
    "--random-weights", is_flag=True, help="With --serve: make weights up; the folder needs no more than a config.json."
)
@click.option(
    "--api",
    type=click.Choice(("tokens", "text", "chat")),
    default="tokens",
    show_default=True,
    help="Prompts of token ids (vLLM, SGLang), of words, or chats.",
)
@click.option("--served-model-name", default=None, help="Model to ask for.  [default: the server's first]")
@click.option("--api-key-env", default=None, metavar="NAME", help="Environment variable that holds the API key.")
@click.option(
    "--timeout",
    type=float,
    default=120.0,
    show_default=True,
    help="A server that sends nothing for so long is slow [s].",
)
@click.option(
    "--start-timeout", type=float, default=900.0, show_default=True, help="For the started server to be ready [s]."
)
@deployment_options
@calibration_options
@click.option("--assume-efficiency", is_flag=True, help="Predict with the efficiencies of the GPU's nearest relative.")
@click.option(
    "--record",
    type=click.Path(path_type=Path),
    default=DEFAULT_RECORD,
    show_default=True,
    help="File of all tokens, which `costmodel check` reads.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
@click.option(
    "--plot", type=click.Path(path_type=Path), default=None, help="Draw a figure into this .png, .svg or .pdf."
)
@click.option("--figure", type=click.Choice(FIGURES), default=None, help="Which figure --plot draws.  [default: gaps]")
@click.option("--force", is_flag=True, help="Overwrite the files that are written.")
@click.argument("server_flags", nargs=-1, type=click.UNPROCESSED)
def command(**options: Any) -> int:
    """Run the long-prompt experiment on a live server: streams, an injector, a baseline.

    Many chats stream while a long prompt is sent every few seconds. Every token of every stream is stamped on arrival, first without
    injections (the baseline), then with. With --gpu or --calibration the answer holds the prediction beside what was measured.
    """
    source, output = _take_source(options), _take_output(options)
    about = _take_prediction(options, source)
    if source.record is not None:
        return _finish(source.record, output, about, 0)
    if output.record.exists() and not output.force:
        raise InputError(f"{output.record} exists; use --force to replace it")
    check_writable(output.record, output.force)
    with _sigterm_is_ctrl_c():
        code = _experiment(source, output, options)
    return _finish(output.record, output, about, code)


# --- options ---------------------------------------------------------------------------------------------------------------


def _given(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def _take_source(options: dict[str, Any]) -> Source:
    source = Source(options.pop("serve"), options.pop("url"), options.pop("record_read"))
    if sum(each is not None for each in source) != 1:
        raise InputError("give one of --serve MODEL_DIR, --url URL and --from RECORD")
    if source.serve is None and options["server_flags"]:
        raise InputError("flags behind `--` are for `vllm serve`, which only --serve starts")
    for name in ("random_weights", "start_timeout"):
        if source.serve is None and _given(name):
            raise InputError(f"--{name.replace('_', '-')} is for --serve, which starts a server")
    if source.serve is not None and options["api_key_env"] is not None:
        raise InputError("--api-key-env is for --url; the server that --serve starts asks for no key")
    return source


def _take_output(options: dict[str, Any]) -> Output:
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


def _take_prediction(options: dict[str, Any], source: Source) -> dict[str, Any] | None:
    """Take the options of the prediction; None if none is asked for."""
    asked = any(_given(name) for name in ("gpu", "calibration", "assume_efficiency"))
    taken = {name: options.pop(name) for name in MODEL_NAMES}
    taken = {name: single(name, value) if isinstance(value, list) else value for name, value in taken.items()}
    taken["assume_efficiency"] = options.pop("assume_efficiency")
    if options.pop("pp") != 1:
        raise InputError("pp: pipeline stages are not predicted here; leave --pp out")
    if not asked:
        if _given("model"):
            raise InputError("--model is for the prediction, which needs a GPU as well: --gpu NAME")
        return None
    if not _given("gpu"):
        taken["gpu"] = _gpu_of(taken["calibration"])
    if not _given("model"):
        if source.url is not None:
            raise InputError("the prediction needs the model that is served: --model NAME, or its config.json")
        taken["model"] = str(source.serve) if source.serve is not None else None
    _check_prediction(taken)
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


def _plan(options: dict[str, Any], output: int) -> Plan:
    from costmodel.validation.interference.records import Plan

    duration = positive(options["duration"], "duration", 1e6)
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


def _key(name: str | None) -> str | None:
    """Return the key in an environment variable; it is never shown."""
    if name is None:
        return None
    value = os.environ.get(name, "").strip()
    if not value:
        raise InputError(f"--api-key-env {name}: there is no such environment variable, or it is empty")
    if not value.isascii() or not value.isprintable():
        raise InputError(f"--api-key-env {name}: what it holds has characters that a key cannot have")
    return value


# --- the experiment --------------------------------------------------------------------------------------------------------


def _experiment(source: Source, output: Output, options: dict[str, Any]) -> int:
    """Run it; return the exit code."""
    from costmodel.validation.interference.client import Client, parse_url

    _plan(options, 1)  # refuse wrong numbers before a server is started
    patience = positive(options["timeout"], "timeout", 1e6)
    if source.url is not None:
        address = parse_url(source.url)
        return _attached(Client(address, _key(options["api_key_env"]), patience), source, output, options, None)
    from costmodel.validation.backends import vllm_server

    assert source.serve is not None
    config = vllm_server.check_folder(source.serve)
    flags = _serve_flags(source.serve, options)
    line = Line()
    try:
        with vllm_server.serving(
            source.serve,
            flags,
            lambda passed: line.show(f"the server starts: {passed:,.0f} s"),
            positive(options["start_timeout"], "start-timeout", 1e6),
        ) as running:
            line.clear()
            options["vocabulary"] = config.get("vocab_size")
            return _attached(Client(parse_url(running.url), None, patience), source, output, options, running)
    finally:
        line.clear()


def _serve_flags(folder: Path, options: dict[str, Any]) -> list[str]:
    """Return the flags of the server: those that were given, and those that the experiment needs."""
    from costmodel.validation.backends.vllm_server import has_tokenizer, known_flags

    given = list(options["server_flags"])
    known = known_flags(given)
    chunk = single("chunk", options["chunk"])
    if chunk is not None and "max_num_batched_tokens" in known:
        raise InputError("--chunk and --max-num-batched-tokens are the same; give one of them")
    if chunk != "engine" and "max_num_batched_tokens" not in known:
        prompt, streams = single("prompt", options["prompt"]), single("streams", options["streams"])
        given += ["--max-num-batched-tokens", str(prompt + streams if chunk is None else chunk)]
    if "served_model_name" not in known:
        given += ["--served-model-name", folder.resolve().name]  # and not its path
    if options["random_weights"] and "load_format" not in known:
        given += ["--load-format", "dummy"]
    if "skip_tokenizer_init" not in known and options["api"] == "tokens" and not has_tokenizer(folder):
        given += ["--skip-tokenizer-init"]
    return given


def _attached(client: Client, source: Source, output: Output, options: dict[str, Any], running: Running | None) -> int:
    """Run the experiment on a server that answers; return the exit code."""
    from costmodel.validation.interference.experiment import ServerLostError

    line = Line()
    try:
        asyncio.run(_run(client, source, output, options, running.flags if running else {}, line))
    except (KeyboardInterrupt, asyncio.CancelledError):
        line.clear()
        if not output.record.exists():
            raise KeyboardInterrupt from None
        click.echo("interrupted: the numbers are of what had happened until then", err=True)
        return INTERRUPTED
    except ServerLostError as error:
        line.clear()
        why = ""
        if running is not None and not running.alive():
            why = f"; the server is gone, the last lines of its log: {running.tail()}"
        click.echo(f"the experiment ended early: {error}{why}", err=True)
        return 1
    finally:
        line.clear()
    return 0


async def _run(
    client: Client, source: Source, output: Output, options: dict[str, Any], flags: dict[str, Any], line: Line
) -> None:
    from costmodel.validation.interference.experiment import Experiment
    from costmodel.validation.interference.preparing import inspect, output_tokens
    from costmodel.validation.interference.records import Recorder
    from costmodel.validation.interference.streams import Prompts, Speech, learn

    found = await inspect(client, options["served_model_name"])
    plan = _plan(options, 1)
    tokens = output_tokens(found, plan.context_tokens, plan.prompt_tokens, options["output"])
    plan = _plan(options, whole(tokens, "output", 3))
    speech = Speech(found.model, options["api"], Prompts(options.get("vocabulary")))
    notes = await learn(client, speech)
    header = _header(client, source, options, plan, found, flags, notes)
    output.record.unlink(missing_ok=True)  # only with --force
    with Recorder(output.record, header) as recorder:
        await Experiment(client, speech, recorder, plan, line.progress).run()


def _header(
    client: Client,
    source: Source,
    options: dict[str, Any],
    plan: Plan,
    found: Any,
    flags: dict[str, Any],
    notes: list[str],
) -> Any:
    from costmodel.validation.interference.records import Header, Server

    if source.url is not None and isinstance(chunk := single("chunk", options["chunk"]), int):
        flags = {"max_num_batched_tokens": chunk}
    server = Server(
        url=client.address.url,
        engine=found.engine,
        version=found.version,
        flags={**found.flags, **flags},
        started=source.serve is not None,
    )
    machine, model = None, None
    if source.serve is not None:
        from costmodel.validation.backends.vllm_server import is_cpu_build
        from costmodel.validation.interference.preparing import local_machine

        count = flags.get("tensor_parallel_size", 1)
        machine = local_machine(is_cpu_build(), count if isinstance(count, int) else 1)
        model = _model(source.serve, options, flags)
    return Header(
        server=server,
        model_name=source.serve.resolve().name if source.serve is not None else found.model,
        model=model,
        machine=machine,
        plan=plan,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=_command(source, plan),
        versions={"python": sys.version.split()[0]},
        notes=tuple(notes),
    )


def _model(folder: Path, options: dict[str, Any], flags: dict[str, Any]) -> Any:
    """Return what is served, from its folder."""
    import json

    from costmodel.validation.interference.comparing import FORMATS
    from costmodel.validation.measurements.types import Model

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    stored = str(flags.get("dtype", config.get("torch_dtype") or config.get("dtype") or "auto"))
    return Model(
        name=folder.resolve().name,
        config=config,
        dtype=FORMATS.get(stored, stored),
        random_weights=options["random_weights"],
    )


def _command(source: Source, plan: Plan) -> str:
    """Return the command in short: numbers of the plan, no paths, no secrets."""
    where = "--serve MODEL_DIR" if source.serve is not None else "--url URL"
    return (
        f"costmodel interfere {where} --prompt {plan.prompt_tokens} --streams {plan.streams} --context {plan.context_tokens} "
        f"--every {plan.every_s:g} --first {plan.first_s:g} --duration {plan.duration_s:g} --baseline {plan.baseline_s:g} "
        f"--output {plan.output_tokens}"
    )


@contextmanager
def _sigterm_is_ctrl_c() -> Iterator[None]:
    """Let SIGTERM end the command as Ctrl-C does, so that the server is stopped and the record is whole."""

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, end)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# --- the answer ------------------------------------------------------------------------------------------------------------


def _finish(path: Path, output: Output, about: dict[str, Any] | None, code: int) -> int:
    """Report on a record, and draw it; return the exit code."""
    from costmodel.validation.interference.records import read_record
    from costmodel.validation.interference.summary import summarise

    record = read_record(path)
    summary = summarise(record, path.name)
    compared: Compare | None = None
    if about is not None and summary.decode_step_s is not None:
        summary, compared = _compare(record, summary, about)
    missed: InputError | None = None
    if output.plot is not None:
        try:
            _plot(record, summary, compared, about, output)
        except InputError as error:
            missed = error
    if output.as_json:
        echo_json(summary)
    else:
        from costmodel.cli.interfere_report import report

        click.echo(report(summary))
    if missed is not None and code == 0:
        raise missed
    if missed is not None:
        click.echo(f"no figure: {missed}", err=True)
    return code


def _compare(record: Record, summary: Interference, about: dict[str, Any]) -> tuple[Interference, Compare]:
    from costmodel.validation.interference.comparing import compare

    options = dict(about)
    if options["model"] is None:
        raise InputError("the prediction needs the model that was served: --model NAME, or its config.json")
    compared = compare(record, summary, **options)
    changed = {
        "predicted": compared.rows,
        "prediction": compared.about,
        "warnings": (*summary.warnings, *compared.warnings),
    }
    return summary.model_copy(update=changed), compared


def _plot(
    record: Record, summary: Interference, compared: Compare | None, about: dict[str, Any] | None, output: Output
) -> None:
    from costmodel.cli.interfere_figures import draw

    assert output.plot is not None
    draw(output.figure, record, summary, compared, about, output.plot, output.force)
    click.echo(f"wrote {output.plot}", err=True)


one_value_each(command)
