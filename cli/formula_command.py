"""``costmodel formula``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from costmodel.certainty import NO_CALIBRATION
from costmodel.checks import positive
from costmodel.cli.options import (
    calibration_options,
    deployment_options,
    echo_json,
    image_options,
    load_options,
    one_value_each,
    single,
)
from costmodel.cli.text import milliseconds, significant, table
from costmodel.deployment import deploy
from costmodel.documents import FORMULA_NAMES, RUNG_NAMES, FormulaName, RungName
from costmodel.hardware.catalog import load_gpu
from costmodel.hardware.errors import InputError, NoAnswerError
from costmodel.hardware.shipped import shipped_calibrations
from costmodel.solving import UNKNOWNS, Solution, solve

if TYPE_CHECKING:
    from costmodel.symbolic.formulas import Formula

NAMES_OF_UNKNOWNS = {"prompt": "n", "streams": "D", "context": "c"}


@click.command(
    "formula",
    epilog="`formula decode --rung textbook` prints the lesson's formula, `formula decode --rung calibrated` the one with "
    "fitted efficiencies and overheads.",
)
@click.argument("which", type=click.Choice(FORMULA_NAMES), default="spike")
@click.option(
    "--rung",
    type=click.Choice(RUNG_NAMES),
    default=None,
    help="Rung.  [default: roofline, or calibrated with --calibration or --engine; with --solve calibrated where GPU and engine have a "
    "calibration]",
)
@click.option("--latex", "form", flag_value="latex", help="Print LaTeX.")
@click.option("--python", "form", flag_value="python", help="Print a Python function that stands on its own.")
@click.option("--js", "form", flag_value="js", help="Print a JavaScript function that stands on its own.")
@click.option(
    "--values", is_flag=True, help="Substitute the numbers of model and GPU, leaving the workload as symbols."
)
@click.option("--elasticities", "sensitive", is_flag=True, help="Which 1 % change helps most.")
@click.option(
    "--solve",
    "unknown",
    type=click.Choice(UNKNOWNS),
    default=None,
    help="Largest value of this that keeps a limit; needs one of the limits below.",
)
@click.option("--spike-ms", type=float, default=None, help="Limit on the spike's height [ms].")
@click.option("--decode-ms", type=float, default=None, help="Limit on the decode step [ms].")
@click.option("--ratio", type=float, default=None, help="Limit on the spike in decode steps.")
@one_value_each
@load_options
@deployment_options
@click.option(
    "--prompts", type=int, default=1, show_default=True, help="Long prompts that arrive together (for --solve)."
)
@image_options
@click.option("--params", type=float, default=None, help="Parameter count P of the textbook rung, e.g. 8e9.")
@calibration_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def command(
    which: FormulaName,
    rung: RungName | None,
    form: str | None,
    values: bool,
    sensitive: bool,
    unknown: str | None,
    spike_ms: float | None,
    decode_ms: float | None,
    ratio: float | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Print decode step, prefill, mixed step or spike as a formula; export it, solve it, differentiate it."""
    several = ("prompt", "streams", "context", "chunk", "gpu", "model", "tp", "dtype")
    options |= {name: single(name, options[name]) for name in several}
    _refuse_conflicts(unknown, sensitive, as_json, form, values)
    limits = {"spike_ms": spike_ms, "decode_ms": decode_ms, "ratio": ratio}
    given = {name: positive(value, _option(name), 1e15) for name, value in limits.items() if value is not None}
    if unknown is not None:
        if len(given) != 1:
            raise InputError(f"--solve needs exactly one of {', '.join(map(_option, limits))}, not {len(given)}")
        limit = {name.replace("_ms", "_s"): value if name == "ratio" else value / 1e3 for name, value in given.items()}
        images, size = options.pop("images"), options.pop("image_size")
        if images or size is not None:
            raise InputError("--solve is for prompts without images; leave out --images and --image-size")
        _print_solution(solve(unknown, rung=rung, **limit, **options), as_json)  # type: ignore[arg-type]
        return
    if given:
        raise InputError(f"{_option(next(iter(given)))} needs --solve prompt, --solve streams or --solve context")
    made = _make(which, rung, options)
    if sensitive:
        _print_elasticities(made, as_json)
    elif as_json:
        echo_json(_document(made))
    elif form in ("python", "js"):
        from costmodel.symbolic.export import to_javascript, to_python

        click.echo(to_python(made) if form == "python" else to_javascript(made), nl=False)
    else:
        _print_formula(made, form == "latex", values)
        if rung is None and made.rung == "roofline" and form is None and options["calibration"] is None:
            _tell_of_calibrated(options["gpu"], options["engine"])


def _tell_of_calibrated(gpu: str, engine: str) -> None:
    """Say how to get the calibrated formula, where there is one."""
    if (resolved := load_gpu(gpu)[1].name, engine) in shipped_calibrations():
        click.echo(f"with the efficiencies and overheads fitted for {resolved} and {engine}: --rung calibrated")


_LARGEST = r"\max_{(q,\,s)}"


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _refuse_conflicts(unknown: str | None, sensitive: bool, as_json: bool, form: str | None, values: bool) -> None:
    """Refuse options that ask for two different answers at once."""
    asked = {
        "--solve": unknown is not None,
        "--elasticities": sensitive,
        f"--{form}": form is not None,
        "--values": values,
        "--json": as_json,
    }
    chosen = [name for name, given in asked.items() if given]
    together = ({"--latex", "--values"}, {"--solve", "--json"}, {"--elasticities", "--json"})
    if len(chosen) > 1 and set(chosen) not in together:
        raise InputError(f"{' and '.join(chosen)} do not go together; ask for one at a time")


def _make(which: FormulaName, rung: RungName | None, options: dict[str, Any]) -> Formula:
    from costmodel.symbolic.formulas import formula

    names = ("tp", "pp", "ep", "dtype", "kv_dtype", "compute_dtype", "lora")
    deployment = deploy(options["model"], options["gpu"], pooling=True, **{name: options[name] for name in names})
    if options["prompts"] != 1:
        raise InputError("a formula is for one prompt; --prompts goes with --solve")
    return formula(
        deployment,
        which,
        rung or _default_rung(options),
        **{
            name: options[name]
            for name in (
                *("prompt", "streams", "context", "chunk", "params", "engine", "calibration"),
                *("images", "image_size"),
            )
        },
    )


def _default_rung(options: dict[str, Any]) -> RungName:
    """Return the calibrated rung where a calibration or an engine was asked for, else the roofline's, which is the physics."""
    engine = click.get_current_context().get_parameter_source("engine") is not click.core.ParameterSource.DEFAULT
    if options["calibration"] == NO_CALIBRATION:
        return "roofline"
    return "calibrated" if options["calibration"] or engine else "roofline"


def _print_formula(made: Formula, latex: bool, values: bool) -> None:
    from costmodel.symbolic.export import to_latex, to_unicode

    write = to_latex if latex else to_unicode
    terms = made.substituted().terms if values else made.terms
    if latex:
        lines = [f"{item} &= {write(meaning)} \\\\" for case in made.cases for item, meaning in case]
        lines += [f"{_latex_time(term.name)} &= {write(term.expression)} \\\\" for term in terms]
        total = " + ".join(_latex_time(term.name) for term in terms)
        lines.append(f"{_latex_time(made.name)} &= " + (f"{_LARGEST} ({total})" if made.cases[1:] else total))
        click.echo("\\begin{align*}\n" + "\n".join(lines) + "\n\\end{align*}")
        return
    width = max(len(term.name) for term in terms)
    click.echo(f"{made.name} [s] of {made.what}, {made.rung} rung: the sum of\n")
    for term in terms:
        click.echo(f"  {term.name.ljust(width)} = {write(term.expression)}")
    if made.cases[1:]:
        click.echo("\nthe larger of its values for the last full chunk and for the remainder after it:")
    for case in made.cases:
        if case:
            click.echo("  " + ",  ".join(f"{item} = {write(meaning)}" for item, meaning in case))
    click.echo("\nwhere")
    left = {item for term in terms for item in term.expression.free_symbols}
    left |= {item for case in made.cases for _, meaning in case for item in meaning.free_symbols}
    click.echo(table([_symbol_row(item, made) for item in made.arguments if item in left], left=2))
    click.echo(f"\n{made.name} = {milliseconds(made.evaluate())} ms with these values")


def _latex_time(name: str) -> str:
    """Return the symbol of an operator's time, e.g. t with the subscript ``qkv_proj``."""
    return "t_{\\mathrm{" + name.replace("_", "\\_") + "}}"


def _entry(item: Any) -> Any:
    from costmodel.symbolic.nomenclature import entry_of

    return entry_of(str(item))


def _meaning(item: Any) -> str:
    """Return what a symbol means; a suffix says which of several: (bf16), (2)."""
    entry = _entry(item)
    kind = str(item).removeprefix(entry.name).strip("_").replace("_", " ")
    return f"{entry.meaning} ({kind})" if kind else str(entry.meaning)


def _symbol_row(item: Any, made: Formula) -> list[str]:
    entry = _entry(item)
    return [str(item), _meaning(item), _shown(float(made.values[item])), entry.unit]


def _shown(value: float) -> str:
    """Return a symbol's number in full: counts with separators, ratios with what digits they have."""
    return f"{value:,.0f}" if value % 1 == 0 else f"{value:,.6g}"


def _print_elasticities(made: Formula, as_json: bool) -> None:
    from costmodel.symbolic.sensitivity import elasticities

    found = elasticities(made)
    if as_json:
        rows = [{"symbol": str(item.symbol), "elasticity": item.value} for item in found]
        echo_json({"schema": "costmodel.elasticities/1", "formula": made.name, "rung": made.rung, "elasticities": rows})
        return
    click.echo(
        f"1 % more of each changes the {made.name} of {made.what} ({milliseconds(made.evaluate())} ms, {made.rung} rung) by\n"
    )
    rows_of_text = [[str(item.symbol), _meaning(item.symbol), f"{item.value:+.3f} %"] for item in found if item.value]
    click.echo(table(rows_of_text, left=2))
    idle = [str(item.symbol) for item in found if not item.value]
    if idle:
        click.echo(f"\nno effect: {', '.join(idle)}")


def _print_solution(solution: Solution, as_json: bool) -> None:
    if as_json:
        echo_json(solution)
        if solution.status == "none":
            raise SystemExit(1)
        return
    names = {"spike_s": "spike", "decode_s": "decode step", "ratio": "spike in decode steps"}

    def shown(value: float | None) -> str:
        if value is None:
            return "–"
        return f"{significant(value, 6)} ×" if solution.quantity == "ratio" else f"{significant(value * 1e3, 6)} ms"

    what, limit = names[solution.quantity], shown(solution.limit)
    if solution.status == "none":
        least = {"prompt": "a prompt of one token", "streams": "one stream", "context": "an empty context"}
        raise NoAnswerError(
            f"none: with {least[solution.unknown]} the {what} is already {shown(solution.at_next)}, over {limit} "
            f"({solution.rung} rung)"
        )
    if solution.status == "unbounded":
        click.echo(f"unbounded: at {solution.value:,} the {what} is still {shown(solution.at_value)}, within {limit}")
        return
    click.echo(
        f"{solution.unknown} {NAMES_OF_UNKNOWNS[solution.unknown]} = {solution.value:,}: the largest with {what} ≤ {limit} "
        f"({solution.rung} rung)\n  at {solution.value:,}: {shown(solution.at_value)};  "
        f"at {(solution.value or 0) + 1:,}: {shown(solution.at_next)}"
    )


def _document(made: Formula) -> dict[str, Any]:
    from costmodel.symbolic.export import to_javascript, to_latex, to_python, to_unicode

    symbols = [
        {
            "name": str(item),
            "meaning": _entry(item).meaning,
            "unit": _entry(item).unit,
            "value": float(made.values[item]),
        }
        for item in made.arguments
    ]
    terms = [
        {"name": term.name, "formula": to_unicode(term.expression), "latex": to_latex(term.expression)}
        for term in made.terms
    ]
    return {
        "schema": "costmodel.formula/1",
        "name": made.name,
        "rung": made.rung,
        "terms": terms,
        "symbols": symbols,
        "value_s": made.evaluate(),
        "python": to_python(made),
        "javascript": to_javascript(made),
    }
