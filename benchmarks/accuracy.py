"""How well fitted kernels predict shapes that were held out: fits every GPU and engine that has been measured, writes docs/accuracy.md.

python benchmarks/accuracy.py            # about a minute; needs the extra `silicon`
python benchmarks/accuracy.py --gpu h100 # print one part, write nothing
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from costmodel.errors import InputError
from costmodel.hardware.catalog import gpu_names, resolve_gpu
from costmodel.validation.datasets.expert_rules import expert_rules
from costmodel.validation.datasets.package import ENGINES
from costmodel.validation.datasets.rules import all_reduce_rules, decode_rules, gemm_rules, prefill_rules
from costmodel.validation.fitting.attention import KINDS, USUAL
from costmodel.validation.fitting.experts import EXPERT_FORMATS
from costmodel.validation.fitting.kernels import OperatorFit, fit_kernels

TARGET = Path(__file__).parents[1] / "docs" / "accuracy.md"
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


SET_BY_HAND = {"gemm_quant_tiled": 2, "prefill_tile": 2, "decode_blocks": 1, "link_switch": 1}
"""Constants of a form that are not fitted but set: rows of a tile and of its quarter; the least share of a tile and the sharpness at
which it binds; elements of a block; the size of large messages."""


def fit_all(gpus: list[str]) -> list[tuple[str, str, OperatorFit]]:
    """Return the fits of every part and engine that has been measured."""
    found = []
    for gpu in gpus:
        for engine in ENGINES:
            try:
                fits = list(fit_kernels(gpu, engine))
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
            "| GPU | engine | form | rows | excluded | median | mean | p90 | bias | like a server's | all rows | at a bound |",
            "|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|---|",
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


def page(fits: list[tuple[str, str, OperatorFit]]) -> str:
    """Return docs/accuracy.md."""
    rules = {
        rule.name: rule.reason
        for chosen in (gemm_rules, expert_rules, prefill_rules, decode_rules, all_reduce_rules)
        for rule in chosen("h100-sxm")
    }
    listed = "\n".join(f"- *{name}*: {reason}" for name, reason in rules.items())
    return f"""# Accuracy

Written by `python benchmarks/accuracy.py` (extra `silicon`), from kernel timings that aiconfigurator-core carries. Errors are of
|predicted/measured − 1| on shapes that the fit did not see: 30 % of the (inputs, outputs) of matrices, of the (heads, KV heads, batch) of
attention, of the message sizes of all-reduces, of the models whose experts were measured. It is one draw, so a table of few shapes
(all-reduce, experts) moves by a point or two from draw to draw.
Bold medians reach the goal. Beside a form stands how many parameters were fitted, and after a plus sign how many constants of it were set
by hand. Attention is full attention with heads of {USUAL} and a bf16 cache unless a table's name says otherwise: `kv-fp8` for an 8-bit
cache, `d64` for heads of 64, `w128` for a window of 128.

*Like a server's* are matrices of at least 512 inputs and outputs, prompts of at least 512 tokens, contexts of at least 512 tokens.
vLLM's fp8-block and nvfp4 matrices were timed without a CUDA graph, so SGLang's table stands for them. Experts are those of one GPU
without expert parallelism, chosen by the two power laws of the tables, in the kernel that ran most rows.

Forms and rules of exclusion were chosen by people who looked at such errors, mostly of the vLLM tables of the H100, H200, B200, A100 and
L40S, and for attention and all-reduces at those of the other parts and engines as well: shapes are held out, forms are not. Which form a
part takes follows from its kernels (FlashAttention-2 before Hopper, CUTLASS tiles for fp8 on Hopper, vLLM's own all-reduce), and a term
that the fitted rows put at zero is left out. *All rows* is the median of the same fit on held-out shapes of every row, excluded or not.
Rows that a rule takes are counted one after another, as `costmodel fit` prints them.

{listed}

These are kernels alone: what a step of an engine takes on top (elementwise kernels, launches, scheduling) is not in them, and kernels of a
mixed step have not been measured together. End-to-end accuracy is not in this page yet.

{table(fits)}
"""


def main() -> None:
    """Fit, and write the page or print one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", help="one part; prints instead of writing")
    chosen = parser.parse_args().gpu
    if chosen:
        print(table(fit_all([resolve_gpu(chosen).name])))
        return
    TARGET.write_text(page(fit_all(list(gpu_names()))), encoding="utf-8")
    print(f"wrote {TARGET}", file=sys.stderr)


if __name__ == "__main__":
    main()
