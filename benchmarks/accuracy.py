"""How well costmodel predicts what was measured: writes docs/accuracy.md with its tables and figures.

python benchmarks/accuracy.py                        # half an hour, nearly all of it simulations; needs the extra `silicon`
python benchmarks/accuracy.py --peer FILE            # beside aiconfigurator's predictions (peer_end_to_end.py makes the file)
python benchmarks/accuracy.py --gpu h100             # kernels of one part, writes nothing
python benchmarks/accuracy.py --end-to-end           # end to end alone, writes nothing

The RTX 4090's tables and the published cases are taken from the folder in COSTMODEL_SHARED or ../shared, where it is there.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import end_to_end
import numpy as np

from costmodel.errors import InputError
from costmodel.hardware.calibration import Calibration
from costmodel.hardware.catalog import gpu_names, resolve_gpu
from costmodel.validation.datasets.end_to_end import PRESETS, EndToEndRow
from costmodel.validation.datasets.expert_rules import expert_rules
from costmodel.validation.datasets.package import ENGINES
from costmodel.validation.datasets.rules import all_reduce_rules, decode_rules, gemm_rules, prefill_rules
from costmodel.validation.fitting.attention import KINDS, USUAL
from costmodel.validation.fitting.closed_loops import Loops
from costmodel.validation.fitting.engines import FREE, PROTOCOL, random_folds
from costmodel.validation.fitting.experts import EXPERT_FORMATS
from costmodel.validation.fitting.kernels import OperatorFit, fit_kernels
from costmodel.validation.fitting.silicon import kernels_of
from costmodel.validation.fitting.simulated_loops import OF_RUNS, PROMPTS, UNITS

TARGET = Path(__file__).parents[1] / "docs" / "accuracy.md"
FIGURES = TARGET.parent / "figures"
GOALS = {
    "gemm.bf16": 5.0,
    "gemm.fp8": 9.0,
    "gemm.fp8-block": 9.0,
    "gemm.fp4": 9.0,
    **{f"experts.{stored}": 8.0 for stored in EXPERT_FORMATS},
    "prefill_attention.bf16": 5.0,
    "decode_attention.bf16": 5.0,
    "all_reduce": 5.0,
    **{f"{phase}_attention.{kind.suffix('bf16')}": 5.0 for kind in KINDS[1:] for phase in ("prefill", "decode")},
}
"""Median error that is aimed at, per operator [%]."""


SET_BY_HAND = {"gemm_tiles": 2, "gemm_quant_tiled": 2, "prefill_tile": 2, "decode_blocks": 1, "link_switch": 1}
"""Constants of a form that are not fitted but set: rows of a tile and of few; rows of a tile and of its quarter; the least share of
a tile and the sharpness at which it binds; elements of a block; the size of large messages."""


def fit_all(gpus: list[str]) -> list[tuple[str, str, OperatorFit]]:
    """Return the fits of every part and engine that has been measured."""
    found = []
    for gpu in gpus:
        for engine in ENGINES:
            try:
                fits = [fit for fit in fit_kernels(gpu, engine) if fit.engine in ("", None, engine)]
            except InputError as error:
                if "have been measured" not in str(error):
                    raise
                continue
            found += [(gpu, engine, fit) for fit in fits]
            print(f"{gpu} {engine}: {len(fits)} operators", file=sys.stderr)
    return found


def table(fits: list[tuple[str, str, OperatorFit]]) -> str:
    """Return one Markdown table per operator."""
    parts = []
    for operator, goal in GOALS.items():
        rows = [(gpu, engine, fit) for gpu, engine, fit in fits if fit.operator == operator]
        if not rows:
            continue
        lines = [
            f"### `{operator}`, goal {goal:g} %",
            "",
            "| GPU | engine | form | rows | excluded | median | mean | p90 | bias | like a server's | all rows | in 80 % "
            "interval | at a bound |",
            "|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|",
        ]
        for gpu, engine, fit in rows:
            errors = fit.errors
            median = f"{errors.median:.1%}" if errors.median * 100 > goal else f"**{errors.median:.1%}**"
            numbers = [
                median,
                f"{errors.mean:.1%}",
                f"{errors.p90:.1%}",
                f"{errors.bias:+.1%}",
                f"{fit.errors_served.median:.1%}" if fit.errors_served else "",
                f"{fit.errors_all.median:.1%}",
                f"{fit.coverage:.0%}" if fit.coverage is not None else "",
            ]
            bounds = ", ".join(fit.result.at_bound)
            by_hand = SET_BY_HAND.get(fit.form, 0) if fit.form != "link_switch" or "large_s" in fit.result.values else 0
            set_by_hand = f" + {by_hand}" if by_hand else ""
            form = f"`{fit.form}` {len(fit.result.values)}{set_by_hand}"
            counts = [form, f"{fit.rows_kept:,}", f"{sum(fit.excluded.values()):,}"]
            lines.append(
                f"| {gpu} | {fit.engine or engine} {fit.version} | " + " | ".join([*counts, *numbers, bounds]) + " |"
            )
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def kernel_text(fits: list[tuple[str, str, OperatorFit]]) -> str:
    """Return the part of the page about kernels."""
    rules = {
        rule.name: rule.reason
        for chosen in (gemm_rules, expert_rules, prefill_rules, decode_rules, all_reduce_rules)
        for rule in chosen("h100-sxm")
    }
    listed = "\n".join(f"- *{name}*: {reason}" for name, reason in rules.items())
    covered = [fit.coverage for _, _, fit in fits if fit.coverage is not None]
    near = sum(0.7 <= share <= 0.9 for share in covered) / len(covered)
    return f"""## Kernels

Kernel timings that aiconfigurator-core carries. Errors are of |predicted/measured − 1| on shapes that the fit did not see: 30 % of the
(inputs, outputs) of matrices, of the (heads, KV heads, batch) of attention, of the message sizes of all-reduces, of the models whose
experts were measured. It is one draw, so a table of few shapes (all-reduce, experts) moves by a point or two from draw to draw. Bold
medians reach the goal. Beside a form stands how many parameters were fitted, and after a plus sign how many constants of it were set by
hand. Attention is full attention with heads of {USUAL} and a bf16 cache unless a table's name says otherwise: `kv-fp8` for an 8-bit
cache, `d64` for heads of 64, `w128` for a window of 128.

*Like a server's* are matrices of at least 512 inputs and outputs, prompts of at least 512 tokens, contexts of at least 512 tokens. *All
rows* is the median of the same fit on held-out shapes of every row, excluded or not. *In 80 % interval* is the share of held-out rows
within the interval, by size, that the other half of them gives; over all {len(covered)} fits its median is {np.median(covered):.0%},
and {near:.0%} of them lie between 70 and 90 %. vLLM's fp8-block and nvfp4 matrices were timed without a CUDA graph, so SGLang's table
stands for them. Experts are those of one GPU without expert parallelism, chosen by the two power laws of the tables, in the kernel that
ran most rows.

Forms and rules of exclusion were chosen by people who looked at such errors, mostly of the vLLM tables of the H100, H200, B200, A100
and L40S, and for attention and all-reduces at those of the other parts and engines as well: shapes are held out, forms are not. Which
form a part takes follows from its kernels (FlashAttention-2 before Hopper, CUTLASS tiles for fp8 on Hopper, vLLM's own all-reduce,
rings over PCIe), and
a term that the fitted rows put at zero is left out. Rows that a rule takes are counted one after another, as `costmodel fit` prints
them.

{listed}

{table(fits)}
"""


def rtx4090_text(folder: Path) -> str:
    """Return the part of the page about the RTX 4090's layer tables, where mixed steps were measured."""
    from costmodel.validation.datasets.rtx4090 import rtx4090
    from costmodel.validation.fitting.rtx4090 import fit_rtx4090

    lines = []
    for fit, parts in fit_rtx4090(rtx4090(str(folder)), (), 0):
        lines += [(fit.operator, fit.errors), *parts.items()]
    rows = [
        f"| {name} | {errors.rows:,} | {errors.median:.1%} | {errors.mean:.1%} | {errors.p90:.1%} | {errors.bias:+.1%} |"
        for name, errors in lines
    ]
    return "\n".join(
        [
            "## RTX 4090: layers of Llama-3.1-8B, mixed steps included",
            "",
            "vLLM 0.19 layer timings of [LLMServingSim](https://github.com/casys-kaist/LLMServingSim), `costmodel fit --dataset rtx4090 "
            "--data FOLDER`; errors on held-out shapes of one draw: [calibration.md](calibration.md) has the mean of five, which differs a "
            "little.",
            "",
            "| what | rows | median | mean | p90 | bias |",
            "|---|--:|--:|--:|--:|--:|",
            *rows,
            "",
        ]
    )


def end_to_end_text(found: end_to_end.EndToEnd, everything: tuple[dict[str, end_to_end.Score], int, int]) -> str:
    """Return the part of the page about closed loops."""
    loops, peer = found.loops, found.peer
    tried = ", ".join(f"{count:.0f}" for count in PROMPTS)
    about = ABOUT_LOOPS.format(
        kept=len(loops), aggregated=found.aggregated, share=1 - len(loops) / found.aggregated, engine=len(FREE),
        runs=len(PROTOCOL), arrival=len(UNITS), more=len(OF_RUNS), prompts=tried,
    )  # fmt: skip
    excluded = "; ".join(f"*{name}* {count}" for name, count in found.excluded.items())
    parts = [about, f"Excluded: {excluded}.", ""]
    header = ["| rows | held out | | TPOT median | mean | p90 | bias | TTFT median | mean | p90 | bias |"]
    header += ["|--:|---|---|" + "--:|" * 8]
    rows = []
    for name, goal in GOALS_END_TO_END.items():
        rows.append(_line(name, f"costmodel (goal {goal[0]} / {goal[1]} %)", found.splits[name], loops))
        if name in found.simulated:
            simulated = f"costmodel, simulated (goal TTFT {GOALS_SIMULATED[name]} %)"
            rows.append(_line(name, simulated, found.simulated[name], loops))
        if peer is not None:
            common = ~np.isnan(peer.tpot)
            rows.append(_line("", "costmodel, common rows", found.splits[name].only(common), loops))
    if peer is not None:
        rows.append(_line("–", "aiconfigurator, common rows", peer, loops))
    scores, total, missing = everything
    every = f"every aggregated row: {scores['tpot'].median:.1%} TPOT and {scores['ttft'].median:.1%} TTFT (random thirds) on "
    every += f"{total - missing:,} of {total:,}, {missing} have parallel sizes that the model cannot be divided by."
    parts += [*header, *rows, "", "Without any exclusion, " + every, ""]
    parts += [_by_group(found), _by_rows(found), _coverage(found)]
    return "\n".join(parts)


ABOUT_LOOPS = """## End to end: TTFT and TPOT of closed loops

{aggregated:,} aggregated rows of `silicon_sample.csv` in aiconfigurator-core are of models that may be looked at; the rules keep {kept:,}
of them ({share:.1%} excluded; at most 15 % may be). Kernels are those of the shipped calibrations, fitted to kernel tables only. Fitted to
end-to-end rows are {engine} overheads per engine and {runs} number of the runs (the share of the first burst, where the source does not
say how many prompts were sent); they are kept near a fit to all engines together (one weight, set by hand), and three numbers of the loss
were set by hand. The closed form of [equations.md](equations.md) makes TTFT and TPOT of them; how servers were started (8-bit caches, token
budgets, held prompts) is from public launch scripts (`validation/datasets/servers.py`), not fitted, but for one: NVIDIA's Llama-3.1-8B
runs with TensorRT-LLM always queue one client, which the rows themselves show. Which overheads there are was chosen by people who looked
at such errors: rows are held out, the form is not.

*Simulated* rows run the row's load test request by request on the same steps (`validation/fitting/simulated_loops.py`): all prompts of
InferenceX; SGLang prefills first, TensorRT-LLM holds prompts back where its script says so. Instead of the closed form's two, {arrival}
numbers per engine, what lies between a request and the engine, are fitted to a draw of the rows that are not held out. Runs that do not
say their load have more of their own, per engine: how many prompts a client sends (the best of {prompts}), and {more} numbers of
what comes on top before the engine has a request. Those are of the runs, and no shipped calibration has them. Their lengths are taken to
vary as InferenceX's.
"""

GOALS_END_TO_END = {"random": (6, 20), "GPU held out": (8, 25), "model held out": (10, 25)}
"""Splits, and the median errors of TPOT and TTFT that are aimed at [%]."""

GOALS_SIMULATED = {"random": 15, "GPU held out": 20, "model held out": 20}
"""Splits, and the median error of a simulated TTFT that is aimed at [%]."""


def _line(held_out: str, who: str, predicted: end_to_end.Predicted, loops: Loops) -> str:
    tpot, ttft = end_to_end.score(predicted.tpot, loops.tpot), end_to_end.score(predicted.ttft, loops.ttft)
    numbers = [f"{score.median:.1%} | {score.mean:.1%} | {score.p90:.1%} | {score.bias:+.1%}" for score in (tpot, ttft)]
    return f"| {tpot.rows:,} | {held_out} | {who} | " + " | ".join(numbers) + " |"


def stand_ins(families: Iterable[str]) -> str:
    """Return which presets stand for measured models that have none of their own; empty where all have."""
    named = {family: PRESETS[family] for family in sorted(set(families)) if family in PRESETS}
    return " ".join(
        f"{family} has no preset of its own: {preset} stands for it, {SAME[family]}."
        for family, preset in named.items()
    )


SAME = {"MiniMax-M2.5": "whose config.json is the same", "Kimi-K2.5": "whose language model is the same"}
"""Why a preset may stand for a model (``PRESETS`` of the data set)."""


def _by_group(found: end_to_end.EndToEnd) -> str:
    """Return medians by engine, GPU and model under every split."""
    loops = found.loops
    lines = ["### By engine, GPU and model (median errors of TPOT / TTFT)", ""]
    if text := stand_ins(row.family for row in loops.rows):
        lines += [text, ""]
    lines += ["| | rows | random | GPU held out | model held out | aiconfigurator |", "|---|--:|--:|--:|--:|--:|"]
    for key in (lambda row: row.engine, lambda row: row.gpu, lambda row: row.family):
        values = np.array([key(row) for row in loops.rows])
        for value in sorted(set(values.tolist())):
            chosen = values == value
            cells = []
            for predicted in (*(found.splits[name] for name in GOALS_END_TO_END), found.peer):
                if predicted is None:
                    cells.append("")
                    continue
                one = predicted.only(chosen)
                scores = [end_to_end.score(one.tpot, loops.tpot), end_to_end.score(one.ttft, loops.ttft)]
                cells.append(f"{scores[0].median:.1%} / {scores[1].median:.1%}")
            lines.append(f"| {value} | {int(chosen.sum()):,} | " + " | ".join(cells) + " |")
    figures = "![Predicted against measured TPOT and TTFT](figures/accuracy-scatter.png)\n\n"
    figures += "![Errors by GPU, engine, model and clients](figures/accuracy-errors.png)\n"
    return "\n".join([*lines, "", figures])


def _by_rows(found: end_to_end.EndToEnd) -> str:
    """Return errors with k rows of the same deployment to calibrate by, for both predictors."""
    loops, base = found.loops, found.splits["deployment held out"]
    where = np.ones(len(loops), dtype=bool) if found.peer is None else ~np.isnan(found.peer.tpot)
    lines = [
        "### With k rows of the deployment itself",
        "",
        "No row of a deployment (model, GPU, engine, formats, parallel sizes) is in the fit; then k of its rows, drawn at"
        " random, correct it by "
        "factors in clients and lengths (a ridge fit, six numbers set by hand, the same for both). Errors are of its "
        "other rows; deployments with "
        f"fewer than {end_to_end.LEAST_ROWS} rows take no part.",
        "",
        "| k | rows | costmodel TPOT (goal 5 % at 8) | TTFT | aiconfigurator TPOT | TTFT |",
        "|--:|--:|--:|--:|--:|--:|",
    ]
    for rows in (0, 2, 4, 8):
        cells, count = [], 0
        for predictor in (base, found.peer):
            if predictor is None:
                cells += ["", ""]
                continue
            made = end_to_end.calibrated_by_rows(loops, predictor, rows, where)
            tpot, ttft = end_to_end.score(made.tpot, loops.tpot), end_to_end.score(made.ttft, loops.ttft)
            count = max(count, tpot.rows)
            cells += [f"{tpot.median:.1%} (p90 {tpot.p90:.1%})", f"{ttft.median:.1%} (p90 {ttft.p90:.1%})"]
        lines.append(f"| {rows} | {count:,} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def _coverage(found: end_to_end.EndToEnd) -> str:
    """Return the coverage of the 80 % intervals."""
    covered = end_to_end.coverage(found.loops, found.splits["random"], random_folds(found.loops, seed=1))
    names = list(covered["tpot"])
    lines = [
        "### Intervals",
        "",
        "Share of held-out rows within the 80 % interval that the rows of other folds give.",
        "",
    ]
    lines += ["| | " + " | ".join(names) + " |", "|---|" + "--:|" * len(names)]
    for what in ("tpot", "ttft"):
        lines.append(f"| {what.upper()} | " + " | ".join(f"{covered[what][name]:.0%}" for name in names) + " |")
    return "\n".join([*lines, ""])


def final_text(tested: list[tuple[str, end_to_end.Score, end_to_end.Score, int]]) -> str:
    """Return the part of the page about the rows that were kept for the end."""
    lines = [
        "## Final test",
        "",
        "Rows of these models were never fitted to, and no form or overhead was chosen by them. Latent attention has no "
        "fitted kernel: it runs at "
        "the rates of grouped attention, and so do GLM-5's indexer and Qwen3.5's gated delta nets; a prediction says so. "
        "*Not predicted* are rows that the rules take. " + stand_ins(family for family, *_ in tested),
        "",
        "| model | rows | TPOT median | p90 | bias | TTFT median | p90 | bias | not predicted |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for family, ttft, tpot, missing in tested:
        cells = [
            f"{score.median:.1%} | {score.p90:.1%} | {score.bias:+.1%}" if score.rows else " | | "
            for score in (tpot, ttft)
        ]
        lines.append(f"| {family} | {tpot.rows:,} | " + " | ".join(cells) + f" | {missing:,} |")
    return "\n".join([*lines, ""])


def cases_text(file: Path) -> str:
    """Return the part of the page about published cases."""
    from case_answers import finder
    from cases import case_rows, read_cases, summary

    rows = case_rows(read_cases(file), finder(None))
    found = summary(rows)
    names = {
        "all": "all numbers",
        "without_single_matrices": "without single matrices of a layer",
        "cases": "cases, each by its median",
    }
    lines = [
        "## Published step times",
        "",
        "`python benchmarks/cases.py` prints every number and the reason of each larger miss. It needs the file of cases, "
        "`cases/measured.yaml` in the folder that COSTMODEL_SHARED names or in `../shared`, which is not part of this repository "
        "(`--cases FILE` takes another). "
        f"{found['predicted']} of {found['numbers']} numbers are predicted, the others refused with a reason.",
        "",
        "| | count | median error (goal 15 %) | within 25 % (goal 70 %) |",
        "|---|--:|--:|--:|",
    ]
    for key, name in names.items():
        each = found[key]
        lines.append(
            f"| {name} | {each['count']} | {each['median_absolute_error']:.1%} | {each['within_25_percent']:.0%} |"
        )
    return "\n".join([*lines, ""])


HEAD = """# Accuracy

Written by `python benchmarks/accuracy.py` (extra `silicon`). Errors are of |predicted/measured − 1|; bias is the median of
predicted/measured − 1, so negative is too fast.

"""


def shared_folder() -> Path | None:
    """Return the folder of shared data, None where there is none."""
    folder = Path(os.environ.get("COSTMODEL_SHARED") or Path(__file__).parents[2] / "shared")
    return folder if folder.is_dir() else None


def calibration_of(row: EndToEndRow) -> Calibration:
    """Return the kernels for a row."""
    return kernels_of(row.gpu, row.engine)


def end_to_end_part(peer: Path | None, figures: bool, simulate: bool) -> list[str]:
    """Run the end-to-end part, draw its figures, and return its text."""
    found = end_to_end.run(calibration_of, peer, simulate)
    if figures:
        from accuracy_figures import draw_errors, draw_scatter

        draw_scatter(found.loops, found.splits["random"], FIGURES / "accuracy-scatter.png")
        draw_errors(found.loops, found.splits["random"], FIGURES / "accuracy-errors.png")
    return [
        end_to_end_text(found, end_to_end.everything(calibration_of)),
        final_text(end_to_end.final_test(calibration_of, found.loops)),
    ]


def main() -> None:
    """Fit, and write the page or print a part of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", help="kernels of one part; prints instead of writing")
    parser.add_argument("--end-to-end", action="store_true", help="the end-to-end part; prints instead of writing")
    parser.add_argument("--peer", type=Path, help="aiconfigurator's predictions, as peer_end_to_end.py writes them")
    parser.add_argument(
        "--without-simulation", action="store_true", help="leave out the simulated rows: then it takes minutes"
    )
    given = parser.parse_args()
    if given.gpu:
        print(table(fit_all([resolve_gpu(given.gpu).name])))
        return
    if given.end_to_end:
        print("\n".join(end_to_end_part(given.peer, figures=False, simulate=not given.without_simulation)))
        return
    parts = end_to_end_part(given.peer, figures=True, simulate=not given.without_simulation)
    shared = shared_folder()
    if shared is not None and (file := shared / "cases" / "measured.yaml").is_file():
        parts.append(cases_text(file))
    if shared is not None and (folder := shared / "data" / "rtx4090-llama-3.1-8b").is_dir():
        parts.append(rtx4090_text(folder))
    parts.append(kernel_text(fit_all(list(gpu_names()))))
    TARGET.write_text(HEAD + "\n".join(parts), encoding="utf-8")
    print(f"wrote {TARGET}", file=sys.stderr)


if __name__ == "__main__":
    main()
