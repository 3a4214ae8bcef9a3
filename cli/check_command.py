"""``costmodel check``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from costmodel.cli.options import Values, echo_json, single
from costmodel.cli.simulate_options import server_options
from costmodel.cli.simulate_running import Watch
from costmodel.cli.simulate_taking import take_server
from costmodel.cli.text import percent, plural
from costmodel.hardware.errors import InputError

if TYPE_CHECKING:
    from costmodel.validation.checking.asking import Asked
    from costmodel.validation.checking.documents import Check, CheckedFile, Row

INTERRUPTED = 130
"""Exit code after Ctrl-C."""

if TYPE_CHECKING:
    ShareType = click.ParamType[float]
else:
    ShareType = click.ParamType  # generic only from click 8.3


class Share(ShareType):
    """A share: ``10%`` or ``0.1``."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return it as a fraction."""
        text = str(value).strip()
        try:
            number = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            number = -1.0
        if not 0 <= number < float("inf"):
            self.fail(f"{value!r} is no share; write 10% or 0.1", param, ctx)
        if number >= 1 and not text.endswith("%"):
            self.fail(f"{value!r} is a share of {100 * number:g} %; write {text}% or {number / 100:g}", param, ctx)
        return number


@click.command(
    "check",
    epilog="FILE is a measurement (`costmodel measure`), an interference record (`costmodel interfere`), JSON of `vllm bench serve "
    "--save-result --save-detailed`, SGLang's bench_serving (--output-details), AIPerf's profile_export.jsonl, or GuideLLM's "
    "benchmarks.json. Docs: docs/check.md.",
)
@click.argument("files", nargs=-1, required=True, metavar="FILE…", type=click.Path(path_type=Path))
@click.option(
    "--max-error",
    type=Share(),
    default=None,
    help="Exit with 1 if a prediction is off by more, e.g. 10%.",
    metavar="SHARE",
)
@click.option(
    "--max-median-error", type=Share(), default=None, help="The same of the median of all errors.", metavar="SHARE"
)
@click.option("--held-out", is_flag=True, help="Of measurements only the steps that no fit has seen.")
@server_options
@click.option(
    "--chunk",
    "--max-num-batched-tokens",
    "chunk",
    type=Values("chunk", several=False),
    default=None,
    help="Token budget of the server, where a file does not say it.  [default: vLLM's; the prompt in one step for interference]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    default=None,
    help="Draw predicted against measured (.png, .svg or .pdf).",
)
@click.option("--force", is_flag=True, help="Overwrite the figure.")
def command(files: tuple[Path, ...], **options: Any) -> int:
    """Hold predictions against measurements.

    GPU and model are those that a file names, unless they are given; results of benchmark clients do not name them. Requests that a
    client measured are simulated, and percentiles compared.
    """
    max_error, max_median = options.pop("max_error"), options.pop("max_median_error")
    as_json, plot, force = options.pop("as_json"), options.pop("plot"), options.pop("force")
    from costmodel.cli.figures import check_target

    if plot is not None:
        check_target(plot, force)
    asked = _asked(options)
    from costmodel.validation.checking.documents import make_check

    found: list[tuple[CheckedFile, Sequence[Row]]] = []
    interrupted = False
    with Watch() as watch:
        from costmodel.validation.checking.files import check_file

        try:
            for path in files:
                found += check_file(path, asked, watch)
        except KeyboardInterrupt:
            interrupted = True
        watch.done()
    if not found:
        raise KeyboardInterrupt
    check = make_check(found, max_error, max_median, interrupted=interrupted)
    missed: InputError | None = None
    if plot is not None:
        try:
            _plot(check, plot, force)
        except InputError as error:  # what was found is told in any case
            missed = error
    if as_json:
        echo_json(check)
    else:
        from costmodel.cli.check_report import report

        click.echo(report(check))
    if missed is not None:
        raise missed
    if interrupted:
        click.echo("interrupted: the numbers are of the files before", err=True)
        return INTERRUPTED
    return _verdict(check)


def _asked(options: dict[str, Any]) -> Asked:
    """Return what the user set; defaults of the options are no one's wish."""
    from costmodel.validation.checking.asking import Asked

    context = click.get_current_context()
    given = {name for name in options if context.get_parameter_source(name) is not ParameterSource.DEFAULT}
    held_out, chunk = options.pop("held_out"), single("chunk", options.pop("chunk"))
    for name in ("prefill_gpus", "decode_gpus", "kv_bandwidth", "kv_latency_ms"):
        if options.pop(name) is not None:
            raise InputError(f"--{name.replace('_', '-')} is for simulations of separate pools, not for checks")
    server: dict[str, Any] = {
        name: value for name, value in take_server(options).items() if name in {*given, "speculation"}
    }
    if "chunk" in given:
        server["chunk"] = "one-step" if chunk is None else chunk
    return Asked(server.pop("gpu", None), server.pop("model", None), server, held_out)


def _plot(check: Check, path: Path, force: bool) -> None:
    from costmodel.cli.check_report import draw
    from costmodel.cli.figures import save_figure

    save_figure(draw(check), path, force)
    click.echo(f"wrote {path}", err=True)


def _verdict(check: Check) -> int:
    """Return 1 if a limit is not kept, and say which."""
    if check.passed is not False:
        return 0
    if check.failed and check.max_error is not None:
        count = plural(len(check.rows), "prediction")
        click.echo(f"{check.failed:,} of {count} are off by more than {percent(check.max_error)}", err=True)
    median = check.summary.median_absolute_error
    if check.max_median_error is not None and median > check.max_median_error:
        click.echo(f"the median error is {percent(median)}, more than {percent(check.max_median_error)}", err=True)
    return 1
