"""``costmodel interfere``: the long-prompt experiment on a live server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from costmodel.cli.files import check_writable
from costmodel.cli.interfere_options import Output, predictable, take_output, take_prediction, take_source
from costmodel.cli.interfere_running import run_experiment
from costmodel.cli.options import calibration_options, deployment_options, echo_json, load_options, one_value_each
from costmodel.hardware.errors import InputError

if TYPE_CHECKING:
    from costmodel.validation.checking.telling import Told

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
    "records_read",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="RECORD",
    help="Report on a record that is there; no server is asked. Several, such as of two token budgets, share a figure.",
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
    if source.records:
        return _finish(source.records, output, about, 0)
    if output.record.exists() and not output.force:
        raise InputError(f"{output.record} exists; use --force to replace it")
    check_writable(output.record, output.force)
    code = run_experiment(source, output, options)
    return _finish([output.record], output, about, code)


def _finish(paths: Sequence[Path], output: Output, about: dict[str, Any] | None, code: int) -> int:
    """Report on records, and draw them; return the exit code."""
    from costmodel.validation.checking.telling import tell

    missed: list[str] = []
    found = []
    for path in paths:
        told = tell(path, about)
        found.append(told)
        missed += [told.missed] if told.missed else []
    if output.plot is not None:
        try:
            _plot(found, output)
        except InputError as error:
            missed.append(f"no figure: {error}")
    summaries = [told.summary for told in found]
    if output.as_json:
        from costmodel.validation.interference.documents import Interferences

        echo_json(summaries[0] if len(summaries) == 1 else Interferences(interferences=tuple(summaries)))
    else:
        from costmodel.cli.interfere_report import report

        click.echo("\n\n\n".join(map(report, summaries)))
    if missed and code == 0:
        raise InputError("; ".join(dict.fromkeys(missed)))
    for text in missed:
        click.echo(text, err=True)
    return code


def _plot(found: Sequence[Told], output: Output) -> None:
    from costmodel.cli.interfere_figures import draw

    assert output.plot is not None
    draw(output.figure, found, output.plot, output.force)
    click.echo(f"wrote {output.plot}", err=True)
