"""``costmodel interfere``: the long-prompt experiment on a live server."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from costmodel.cli.files import check_writable
from costmodel.cli.interfere_options import Output, predictable, take_output, take_prediction, take_source
from costmodel.cli.interfere_running import run_experiment
from costmodel.cli.options import calibration_options, deployment_options, echo_json, load_options, one_value_each
from costmodel.hardware.errors import InputError

if TYPE_CHECKING:
    from costmodel.validation.interference.comparing import Compare
    from costmodel.validation.interference.records import Record
    from costmodel.validation.interference.summary import Interference

FIGURES = ("gaps", "percentiles", "timeline")
DEFAULT_RECORD = Path("interference.jsonl")


@click.command(
    "interfere",
    epilog="Flags of `vllm serve` come behind `--`: costmodel interfere --serve MODEL_DIR -- --dtype float32 --enforce-eager",
)
@predictable
@one_value_each
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
    source, output = take_source(options), take_output(options)
    about = take_prediction(options, source)
    if source.record is not None:
        return _finish(source.record, output, about, 0)
    if output.record.exists() and not output.force:
        raise InputError(f"{output.record} exists; use --force to replace it")
    check_writable(output.record, output.force)
    code = run_experiment(source, output, options)
    return _finish(output.record, output, about, code)


def _finish(path: Path, output: Output, about: dict[str, Any] | None, code: int) -> int:
    """Report on a record, and draw it; return the exit code."""
    from costmodel.validation.interference.records import read_record
    from costmodel.validation.interference.summary import summarise

    record = read_record(path)
    summary = summarise(record, path.name)
    compared: Compare | None = None
    missed: list[str] = []
    with _config_of(record) as folder:
        if about is not None:
            about = {**about, "model": about["model"] or folder}
            try:
                summary, compared = _compare(record, summary, about)
            except InputError as error:  # what was measured is told in any case
                missed.append(f"no prediction: {error}")
        if output.plot is not None:
            try:
                _plot(record, summary, compared, about, output)
            except InputError as error:
                missed.append(f"no figure: {error}")
    if output.as_json:
        echo_json(summary)
    else:
        from costmodel.cli.interfere_report import report

        click.echo(report(summary))
    if missed and code == 0:
        raise InputError("; ".join(missed))
    for text in missed:
        click.echo(text, err=True)
    return code


@contextmanager
def _config_of(record: Record) -> Iterator[str | None]:
    """Yield a folder with the config of the model that was served, where the record has it."""
    if record.model is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as above:
        folder = Path(above, Path(record.model.name).name or "model")
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(record.model.config), encoding="utf-8")
        yield str(folder)


def _compare(record: Record, summary: Interference, about: dict[str, Any]) -> tuple[Interference, Compare]:
    from costmodel.validation.interference.comparing import compare

    if about["model"] is None:
        raise InputError("the prediction needs the model that was served: --model NAME, or its config.json")
    compared = compare(record, summary, **about)
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
