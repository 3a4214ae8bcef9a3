"""How well closed loops are predicted: TTFT and TPOT on rows held out in several ways, beside aiconfigurator. Used by accuracy.py."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import InputError
from costmodel.hardware.calibration import Calibration
from costmodel.validation.datasets.end_to_end import EndToEndRow, EndToEndTable, end_to_end
from costmodel.validation.datasets.end_to_end_rules import end_to_end_rules
from costmodel.validation.datasets.rules import apply_rules
from costmodel.validation.fitting.closed_loops import Loops, deployment_of, tabulate
from costmodel.validation.fitting.engines import (
    FREE,
    PROTOCOL,
    fit_engines,
    folds_by,
    held_out_loops,
    predict_rows,
    random_folds,
)
from costmodel.validation.fitting.holdout import LEVEL
from costmodel.validation.fitting.simulated_loops import RowSimulator, fit_arrivals

Array = NDArray[np.float64]
CalibrationOf = Callable[[EndToEndRow], Calibration]

PRIOR_SPREAD = (0.3, 0.1, 0.1, 0.1)
NOISE = {"tpot": 0.05, "ttft": 0.1}
"""A deployment's own correction is exp(a + b·ln(C/16) + c·ln(isl/2048) + d·ln(osl/1024)), a ridge fit to ln(measured/predicted) of k
rows with these prior spreads and this noise: six numbers set by hand, the same for both predictors."""
LEAST_ROWS = 12
"""Deployments with fewer rows take no part in the comparison by calibration rows."""


@dataclass(frozen=True, slots=True)
class Score:
    """Errors of one quantity: of |predicted/measured − 1|, and the median signed one."""

    rows: int
    median: float
    mean: float
    p90: float
    bias: float


def score(predicted: Array, measured: Array) -> Score:
    """Return the errors of predictions that are there (not NaN)."""
    there = ~np.isnan(predicted)
    signed = predicted[there] / measured[there] - 1
    size = np.abs(signed)
    numbers = (np.median(size), np.mean(size), np.quantile(size, 0.9), np.median(signed))
    return Score(int(there.sum()), *(float(number) for number in numbers))


@dataclass(frozen=True, slots=True)
class Predicted:
    """TTFT and TPOT of every row [s]; NaN where there is none."""

    ttft: Array
    tpot: Array

    def only(self, rows: NDArray[np.bool_]) -> Predicted:
        """Return the same with the other rows blanked out."""
        return Predicted(np.where(rows, self.ttft, np.nan), np.where(rows, self.tpot, np.nan))


@dataclass(frozen=True, slots=True)
class EndToEnd:
    """What the page reports.

    Attributes:
        loops: rows that the rules keep.
        excluded: how many rows each rule takes of the aggregated rows of models that are not the final test.
        aggregated: how many of those there are.
        splits: held-out predictions by the name of the split.
        simulated: the same by simulating each row's load test; empty if that was not asked for.
        peer: aiconfigurator's predictions of the same rows; None without its file.
    """

    loops: Loops
    excluded: dict[str, int]
    aggregated: int
    splits: dict[str, Predicted]
    simulated: dict[str, Predicted]
    peer: Predicted | None


def run(calibration_of: CalibrationOf, peer_file: Path | None, simulate: bool) -> EndToEnd:
    """Fit and predict under every split; ``simulate`` every row as well, which takes minutes."""
    table = end_to_end()
    open_rows = EndToEndTable(tuple(row for row in table if not row.final_test and not row.disaggregated))
    kept, excluded = apply_rules(open_rows, end_to_end_rules())
    loops = tabulate(kept.rows, calibration_of)
    splits, simulated = {}, {}
    for name, folds in (
        ("random", random_folds(loops)),
        ("GPU held out", folds_by(loops, lambda row: row.gpu)),
        ("model held out", folds_by(loops, lambda row: row.family)),
        ("deployment held out", deployment_folds(loops)),
    ):
        loop = held_out_loops(loops, folds)
        splits[name] = Predicted(loop.ttft, loop.tpot)
        if simulate and name in SIMULATED:
            simulated[name] = simulated_loops(loops, folds, calibration_of)
            print(f"simulated {len(loops)} rows, {name}", file=sys.stderr)
    peer = None if peer_file is None else read_peer(peer_file, loops.rows)
    taken = {name: count for name, count in excluded.items() if count}
    return EndToEnd(loops, taken, len(open_rows), splits, simulated, peer)


SIMULATED = ("random", "GPU held out", "model held out")
"""Splits whose rows are simulated too."""


def simulated_loops(loops: Loops, folds: NDArray[np.int64], calibration_of: CalibrationOf) -> Predicted:
    """Simulate the load test of every row, with overheads of steps and ways to the engine fitted to rows of the other folds."""
    ttft, tpot = np.full(len(loops), np.nan), np.full(len(loops), np.nan)
    engines = sorted({row.engine for row in loops.rows})
    for fold in np.unique(folds):
        test = folds == fold
        training = loops.select(~test)
        fits = fit_engines(training, engines)
        simulator = RowSimulator(calibration_of)
        arrivals = fit_arrivals(training.rows, fits, simulator)
        for index in np.flatnonzero(test):
            row = loops.rows[index]
            made = simulator.simulate(row, fits[row.engine], arrivals[row.engine])
            ttft[index], tpot[index] = made.ttft, made.tpot
    return Predicted(ttft, tpot)


def deployment_folds(loops: Loops, count: int = 10) -> NDArray[np.int64]:
    """Return a fold for every row; rows of one deployment share it."""
    return folds_by(loops, lambda row: str(row.deployment)) % count


def read_peer(path: Path, rows: Sequence[EndToEndRow]) -> Predicted:
    """Read the file that peer_end_to_end.py writes.

    Raises:
        InputError: it cannot be read, or knows none of the rows.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = {line["id"]: line for line in csv.DictReader(file)}
    except (OSError, KeyError, UnicodeDecodeError) as error:
        raise InputError(f"peer's predictions {path}: cannot be read ({error})") from None

    def column(name: str) -> Array:
        return np.array([float(lines.get(row.name, {}).get(name) or "nan") for row in rows])

    return Predicted(column("ttft_s"), column("tpot_s"))


def calibrated_by_rows(loops: Loops, base: Predicted, rows: int, where: NDArray[np.bool_], seed: int = 0) -> Predicted:
    """Correct every deployment by ``rows`` of its own rows, drawn at random; those and rows outside ``where`` are blank in the result."""
    draw = np.random.default_rng(seed)
    features = np.stack(
        [
            np.ones(len(loops)),
            np.log(np.asarray(loops.clients.count) / 16),
            np.log(np.array([row.input_tokens for row in loops.rows]) / 2048),
            np.log(np.array([row.output_tokens for row in loops.rows]) / 1024),
        ],
        axis=1,
    )
    measured = {"ttft": loops.ttft, "tpot": loops.tpot}
    made = {name: np.full(len(loops), np.nan) for name in measured}
    names = np.array([str(row.deployment) for row in loops.rows])
    for name in sorted(set(names.tolist())):
        own = draw.permutation(np.flatnonzero((names == name) & where))
        if len(own) < LEAST_ROWS:
            continue
        known, asked = own[:rows], own[rows:]
        for what, column in made.items():
            predicted, noise = getattr(base, what), NOISE[what]
            matrix, right = np.diag(np.array(PRIOR_SPREAD) ** -2.0), np.zeros(len(PRIOR_SPREAD))
            if rows:
                matrix = matrix + features[known].T @ features[known] / noise**2
                right = features[known].T @ np.log(measured[what][known] / predicted[known]) / noise**2
            column[asked] = predicted[asked] * np.exp(features[asked] @ np.linalg.solve(matrix, right))
    return Predicted(made["ttft"], made["tpot"])


def coverage(loops: Loops, base: Predicted, folds: NDArray[np.int64]) -> dict[str, dict[str, float]]:
    """Return the share of rows within the 80 % interval that held-out rows of the other folds give: overall and by GPU.

    As in the shipped calibrations, the interval is that of the part's own rows with the engine where there are enough, else the engine's.
    """
    measured = {"ttft": loops.ttft, "tpot": loops.tpot}
    gpus, engines = (np.array([getattr(row, name) for row in loops.rows]) for name in ("gpu", "engine"))
    found: dict[str, dict[str, float]] = {}
    for name, column in measured.items():
        ratio = column / getattr(base, name)
        inside = np.zeros(len(loops), dtype=bool)
        for fold in np.unique(folds):
            for gpu, engine in sorted(set(zip(gpus.tolist(), engines.tolist(), strict=True))):
                asked = (folds == fold) & (gpus == gpu) & (engines == engine)
                known = (folds != fold) & (engines == engine)
                own = known & (gpus == gpu)
                known = own if np.count_nonzero(own) >= 40 else known
                low, high = np.quantile(ratio[known], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
                inside[asked] = (ratio[asked] >= low) & (ratio[asked] <= high)
        found[name] = {"all": float(inside.mean())}
        for gpu in sorted(set(gpus.tolist())):
            found[name][gpu] = float(inside[gpus == gpu].mean())
    return found


def everything(calibration_of: CalibrationOf) -> tuple[dict[str, Score], int, int]:
    """Score every aggregated row of the open models, excluded or not, by random folds; rows that cannot be deployed are counted."""
    rows = [row for row in end_to_end() if not row.final_test and not row.disaggregated]
    usable = [row for row in rows if _deployable(row)]
    loops = tabulate(usable, calibration_of)
    kept, _ = apply_rules(EndToEndTable(loops.rows), end_to_end_rules())
    names = {row.name for row in kept}
    chosen = np.array([row.name in names for row in loops.rows])
    folds = random_folds(loops)
    ttft, tpot = np.full(len(loops), np.nan), np.full(len(loops), np.nan)
    for fold in np.unique(folds):
        test = folds == fold
        loop = predict_rows(loops.select(test), fit_engines(loops.select(chosen & ~test)))
        ttft[test], tpot[test] = loop.ttft, loop.tpot
    return {"ttft": score(ttft, loops.ttft), "tpot": score(tpot, loops.tpot)}, len(rows), len(rows) - len(usable)


def final_test(calibration_of: CalibrationOf, training: Loops) -> list[tuple[str, Score, Score, int]]:
    """Predict the rows that nothing was fitted to or chosen by: (model, TTFT, TPOT, rows that are not modelled)."""
    fits = fit_engines(training, ("vllm", "sglang", "trtllm"))
    rules = [rule for rule in end_to_end_rules() if rule.name != "final test"]
    rows = EndToEndTable(tuple(row for row in end_to_end() if row.final_test and not row.disaggregated))
    kept, _ = apply_rules(rows, rules)
    made = []
    for family in sorted({row.family for row in rows}):
        of_family = [row for row in kept if row.family == family]
        usable = [row for row in of_family if _deployable(row)]
        missing = sum(row.family == family for row in rows) - len(usable)
        if not usable:
            made.append((family, Score(0, *[float("nan")] * 4), Score(0, *[float("nan")] * 4), missing))
            continue
        loops = tabulate(usable, calibration_of)
        loop = predict_rows(loops, fits)
        made.append((family, score(loop.ttft, loops.ttft), score(loop.tpot, loops.tpot), missing))
    return made


def _deployable(row: EndToEndRow) -> bool:
    try:
        deployment_of(row)
    except InputError:
        return False
    return row.concurrency > 0


def parameters_fitted() -> dict[str, Any]:
    """Return how many numbers stand behind an end-to-end prediction, those set by hand included."""
    return {"overheads per engine": len(FREE), "of the runs, per engine": len(PROTOCOL)}
