"""The tables of a GPU check, in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_check_numbers import PURPOSES, Errors, RateBeside, StepBeside, Way

from costmodel.cli.text import large, significant

WORDS = {"decode": "decodes", "prefill": "prompts", "chunk": "chunks on a context", "mixed": "prompts beside decodes"}
SHOWN = {"mixed": 12}
"""Steps of a purpose that are printed, evenly from the shortest to the longest; all are in the summary."""
OTHERS = 5


def rates_table(rates: Sequence[RateBeside]) -> str:
    """Return measured rates beside the datasheet's."""
    rows = []
    for rate in rates:
        unit = "FLOP/s" if rate.what.startswith("product") else "B/s"
        sheet = f"{large(rate.datasheet)}{unit}" if rate.datasheet else "–"
        share = f"{rate.share:.3f}" if rate.share else "–"
        rows.append([rate.what, rate.detail, f"{large(rate.measured)}{unit}", sheet, share])
    return _table(["rate", "with", "measured", "datasheet", "measured / datasheet"], rows, 2)


def errors_table(errors: Sequence[Errors]) -> str:
    """Return, by purpose of steps, the errors of every way of prediction: predicted/measured − 1, and of the floor its share."""
    ways: list[Way] = [way for way in ("fit", "shipped", "floor") if any(each.way == way for each in errors)]
    header = ["steps", "kinds", "held out"]
    if "fit" in ways:
        header += ["own fit: median error", "of those held out", "worst"]
    if "shipped" in ways:
        header += ["shipped: median error", "bias", "worst"]
    header.append("floor / measured, median")
    rows = []
    for purpose in (*PURPOSES, "all"):
        by_way = {each.way: each for each in errors if each.purpose == purpose}
        if not by_way:
            continue
        floor = by_way["floor"]
        row = [WORDS.get(purpose, purpose), str(floor.count), str(floor.held_out)]
        if "fit" in ways:
            fit = by_way["fit"]
            unseen = fit.held_out_median_absolute_error
            row += [_percent(fit.median_absolute_error), "–" if unseen is None else _percent(unseen), _worst(fit)]
        if "shipped" in ways:
            shipped = by_way["shipped"]
            row += [_percent(shipped.median_absolute_error), _signed(shipped.bias), _worst(shipped)]
        rows.append([*row, f"{1 + floor.bias:.2f}"])
    return _table(header, rows, 1)


def steps_table(steps: Sequence[StepBeside]) -> str:
    """Return some steps of every purpose with all their predictions."""
    ways: list[Way] = [way for way in ("fit", "shipped", "floor") if steps and way in steps[0].predicted_s]
    names = {"fit": "own fit", "shipped": "shipped", "floor": "floor"}
    rows = []
    for purpose in PURPOSES:
        those = sorted((step for step in steps if step.purpose == purpose), key=lambda step: step.measured_s)
        for step in _spread_evenly(those, SHOWN.get(purpose, OTHERS)):
            flag = " **below the floor**" if step.below_floor else ""
            spread = _percent(step.spread_s / step.measured_s)
            row = [step.what + (" (held out)" if step.held_out else "") + flag, _ms(step.measured_s), spread]
            for way in ways:
                error = "" if way == "floor" else f" ({_signed(step.error(way))})"
                row.append(_ms(step.predicted_s[way]) + error)
            rows.append(row)
    return _table(["step", "measured ms", "spread", *(f"{names[way]} ms" for way in ways)], rows, 1)


def _spread_evenly(steps: Sequence[StepBeside], number: int) -> list[StepBeside]:
    if len(steps) <= number:
        return list(steps)
    return [steps[round(place * (len(steps) - 1) / (number - 1))] for place in range(number)]


def _worst(errors: Errors) -> str:
    return f"{_signed(errors.worst_error)} ({errors.worst})"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %".replace("-", "−")


def _ms(seconds: float) -> str:
    return significant(seconds * 1e3)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    marks = ["---"] * left + ["--:"] * (len(header) - left)
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, marks, *rows])
