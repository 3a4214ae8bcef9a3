"""The formulas of a deployment: decode step, prefill, mixed step and spike, on any rung, with the value of every symbol."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import sympy

from costmodel.architecture.counts import total_parameters
from costmodel.architecture.types import Architecture
from costmodel.architecture.vision import VisionTower
from costmodel.building import build_parameters, build_textbook, roofline_parameters
from costmodel.certainty import find_calibration, no_calibration
from costmodel.checks import choice, parameter_count
from costmodel.deployment import Deployment
from costmodel.documents import FORMULA_NAMES, RUNG_NAMES, FormulaName, RungName
from costmodel.encoder import (
    ImageLoad,
    encoder_operators,
    encoder_parameters,
    encoder_split,
    encoder_work,
    make_images,
    with_states,
)
from costmodel.equations.rate_sources import DatasheetRates, RateSource
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import OperatorTime, step_operators
from costmodel.equations.textbook import (
    Textbook,
    textbook_attention,
    textbook_decode,
    textbook_encoder,
    textbook_linear,
)
from costmodel.equations.work import Chunk, Decodes, LocalChunks, OwnReach, Reach, Work, make_work
from costmodel.hardware.calibration import FORMS, Calibration
from costmodel.hardware.errors import InputError, shown
from costmodel.rungs import Load, longest_step, make_load, textbook_spike
from costmodel.symbolic.deployment import symbolic_deployment
from costmodel.symbolic.functions import HELPERS
from costmodel.symbolic.nomenclature import symbol

Definitions = tuple[tuple[Any, Any], ...]
SHOWN_DIGITS = 6
"""Significant digits of substituted numbers."""
WORKLOAD_SYMBOLS = ("n", "q", "s", "m", "D", "c", "N_i", "A_i", "A_iw", "R_i", "p_i")


@dataclass(frozen=True, slots=True)
class Term:
    """One operator's share of a formula."""

    name: str
    expression: Any


@dataclass(frozen=True, slots=True)
class Formula:
    """A time as a formula.

    Attributes:
        name: which time.
        rung: which rung.
        terms: operators; the formula is their sum [s].
        values: the number of every symbol in it.
        cases: what the chunk's symbols stand for, e.g. q = m − D; with several cases the formula is the largest of its values.
    """

    name: FormulaName
    rung: RungName
    terms: tuple[Term, ...]
    values: Mapping[Any, float]
    cases: tuple[Definitions, ...] = ((),)
    what: str = ""
    """Model and GPUs."""

    @property
    def expression(self) -> Any:
        """Σ terms, with the chunk's definitions put in; the largest of the cases [s]."""
        total = sympy.Add(*(term.expression for term in self.terms))
        values = [total.xreplace(dict(case)) for case in self.cases]
        return sympy.Max(*values, evaluate=False) if values[1:] else values[0]

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Its symbols, in the order of the nomenclature."""
        free = self.expression.free_symbols
        return tuple(item for item in self.values if item in free)

    def substituted(self, keep: Collection[str] = WORKLOAD_SYMBOLS) -> Formula:
        """Return the formula with numbers for all symbols but those of the workload."""
        numbers = {item: sympy.Float(value) for item, value in self.values.items() if str(item) not in keep}
        terms = tuple(Term(term.name, _rounded(term.expression.xreplace(numbers))) for term in self.terms)
        return replace(self, terms=terms)

    def evaluate(self, **changed: float) -> float:
        """Return its value in seconds, with some symbols (by name) changed."""
        arguments = self.arguments
        function = sympy.lambdify(arguments, self.expression, modules=[HELPERS, "math"], cse=True)
        return float(function(*(float(changed.get(str(item), self.values[item])) for item in arguments)))


def formula(
    deployment: Deployment,
    name: FormulaName,
    rung: RungName = "roofline",
    *,
    prompt: int = 8000,
    streams: int = 32,
    context: int = 500,
    chunk: int | str | None = None,
    params: float | None = None,
    images: int = 0,
    image_size: str | Sequence[int] | None = None,
    engine: str = "vllm",
    calibration: str | Path | Calibration | None = None,
) -> Formula:
    """Return one time of a deployment as a formula.

    Args:
        deployment: model and part.
        name: ``decode`` (D sequences at context c), ``prefill`` (a prompt of n tokens alone), ``mixed`` (a chunk of q tokens after s
            cached ones beside D sequences), ``spike`` (the whole prompt in one step beside D sequences, or with a token budget m the
            longest of its chunks).
        rung: ``textbook``, ``roofline`` or ``calibrated``.
        prompt, streams, context, chunk: n, D, c, m as numbers; ``chunk`` may be ``"engine"``.
        params: P of the textbook rung.
        images, image_size: of the prompt, as in :func:`costmodel.predict`; ``prefill`` and ``spike`` of a prompt in one step encode them.
        engine, calibration: of the calibrated rung, as in :func:`costmodel.predict`.

    Raises:
        InputError: unknown formula or rung, or a calibrated rung where there is no calibration.
    """
    if not isinstance(deployment, Deployment):
        raise InputError(f"formula needs a deployment (costmodel.deploy), not {shown(deployment)}")
    choice(name, FORMULA_NAMES, "formula")
    choice(rung, RUNG_NAMES, "rung")
    if deployment.architecture.pooling and name != "prefill":
        raise InputError(f"{deployment.architecture.name} pools and has no {name} step; its formula is prefill")
    shown_images = make_images(deployment, images, image_size)
    deployment = with_states(deployment, shown_images)
    load = make_load(deployment, prompt, 1, streams, context, chunk, images=shown_images)
    if shown_images is not None and name != "decode" and (name == "mixed" or load.budget is not None):
        raise InputError(
            "a formula with images is that of prefill, of a spike in one step, or of decode; leave out --chunk"
        )
    params = None if params is None else parameter_count(params)
    fitted = find_calibration(calibration, deployment, engine)
    if rung == "calibrated" and fitted is None:
        raise InputError(no_calibration(deployment, engine))
    numbers = {symbol("D"): float(load.streams), symbol("c"): float(load.context)}
    back = _steps_back(deployment, rung, params, fitted, load) if name == "spike" else 1
    part, chunk_numbers, cases = _chunk(name, load.prompt, load.streams, load.budget, back)
    encoding = None if name == "decode" else shown_images
    terms, values = _terms(deployment, name, rung, part, params, fitted, encoding)
    what = f"{deployment.architecture.name} on {deployment.gpus} × {deployment.profile.name}"
    return Formula(name, rung, terms, {**numbers, **chunk_numbers, **values}, cases, what)


def _rounded(expression: Any) -> Any:
    """Return the expression with every number that is not whole at :data:`SHOWN_DIGITS`, inside functions too."""
    evaluated = sympy.N(expression)
    shown = {
        number: sympy.Integer(int(number)) if number == int(number) else sympy.Float(number, SHOWN_DIGITS)
        for number in evaluated.atoms(sympy.Float)
    }
    return evaluated.xreplace(shown)


def _terms(
    deployment: Deployment,
    name: FormulaName,
    rung: RungName,
    chunk: Chunk | None,
    params: float | None,
    calibration: Calibration | None,
    images: ImageLoad | None = None,
) -> tuple[tuple[Term, ...], dict[Any, float]]:
    """Return the operators' expressions and the number of every symbol of model and part."""
    encoding, image_values = (None, {}) if images is None else _symbolic_images(images)
    if rung == "textbook":
        textbook, values = symbolic_textbook(deployment, params)
        terms = _textbook_terms(textbook, chunk)
        if encoding is not None and deployment.architecture.vision is not None:
            textbook, more = _textbook_tower(textbook, deployment, deployment.architecture.vision)
            terms += (Term("encoder", textbook_encoder(textbook, encoding)),)
            values = values | image_values | more
        return terms, values
    symbolic, values = symbolic_deployment(deployment)
    rates: RateSource = DatasheetRates()
    fitted: dict[Any, float] = {}
    if calibration is not None and rung == "calibrated":
        rates, fitted = symbolic_rates(calibration)
    parameters = build_parameters(symbolic, rates)  # asks the rates for their symbols, which fills ``fitted``
    work = _work(name, chunk, parameters.windows)
    operators = step_operators(parameters, work)
    if encoding is not None:
        operators += encoder_operators(encoder_parameters(symbolic, rates, encoder_split(deployment)), encoding)
    return tuple(_term(operator) for operator in operators), values | image_values | fitted


def _symbolic_images(images: ImageLoad) -> tuple[Work, dict[Any, float]]:
    """Return the work of encoding a prompt's images in symbols, and their numbers."""
    each, count = images.each, images.count
    numbers = {"N_i": count * each.patches, "A_i": count * each.pairs, "R_i": count * each.features}
    numbers["p_i"] = max(each.sequences)
    windowed: dict[Reach, Any] = {}
    if images.window:
        numbers["A_iw"] = count * each.windowed_pairs
        windowed = {images.window: symbol("A_iw")}
    work = encoder_work(
        symbol("N_i"),
        symbol("R_i"),
        float(count * len(each.sequences)),
        symbol("A_i"),
        windowed,
        (Chunk(symbol("p_i")),),
    )
    return work, {symbol(name): float(value) for name, value in numbers.items()}


def _textbook_tower(
    textbook: Textbook, deployment: Deployment, tower: VisionTower
) -> tuple[Textbook, dict[Any, float]]:
    """Return the textbook rung with symbols for the encoder too, and their numbers."""
    names = {"P_i": tower.parameters, "h_i": tower.heads, "d_hi": tower.head_dim, "L_i": tower.layers}
    peak, values = symbol("F"), {symbol(name): value for name, value in names.items()}
    if build_textbook(deployment).encoder_peak != build_textbook(deployment).peak:
        peak = symbol(f"F_{deployment.activation_dtype}")
        values[peak] = build_textbook(deployment).encoder_peak
    width = sympy.Mul(*(symbol(name) for name in ("h_i", "d_hi", "L_i")))
    made = replace(textbook, encoder_parameters=symbol("P_i"), encoder_width=width, encoder_peak=peak)
    return made, values


def symbolic_textbook(deployment: Deployment, params: float | None = None) -> tuple[Textbook, dict[Any, float]]:
    """Return the textbook rung with symbols: P, b, h, d_h, L (per window), F, W."""
    numbers = build_textbook(deployment, params)
    whole, width, peak, bandwidth = symbol("P"), symbol("b"), symbol("F"), symbol("W")
    total, active = numbers.active_parameters, whole
    if _is_mixture(deployment.architecture):
        total = total_parameters(deployment.architecture) if params is None else params
        active = symbol("P_a")
    values: dict[Any, float] = {whole: total, active: numbers.active_parameters, width: numbers.weight_bytes / total}
    attention: list[tuple[OwnReach, Any]] = []
    many = len(numbers.attention) > 1
    for index, (window, summed) in enumerate(numbers.attention, start=1):
        kinds = [
            (kind, count)
            for kind, count in zip(deployment.architecture.kinds, deployment.layer_counts, strict=True)
            if kind.attention.kind != "none" and kind.attention.reach == window
        ]
        heads, layers = kinds[0][0].attention.query_heads, sum(count for _, count in kinds)
        names = [f"{base}_{index}" if many else base for base in ("L", "h", "d_h")]
        symbols = [symbol(item) for item in names]
        values |= dict(zip(symbols, (layers, heads, summed / (layers * heads)), strict=True))
        attention.append((window, sympy.Mul(*symbols)))
    values |= {peak: numbers.peak, bandwidth: numbers.bandwidth}
    attention_peak = peak
    if numbers.attention_peak != numbers.peak:
        attention_peak = symbol(f"F_{deployment.attention_dtype}")
        values[attention_peak] = numbers.attention_peak
    gpus: Any = 1
    if numbers.gpus != 1:
        gpus = symbol("t")
        values[gpus] = numbers.gpus
    return Textbook(whole * width, active, tuple(attention), peak, attention_peak, bandwidth, gpus), values


def _is_mixture(architecture: Architecture) -> bool:
    return any(kind.feed_forward.kind == "moe" for kind in architecture.kinds)


def _steps_back(
    deployment: Deployment, rung: RungName, params: float | None, fitted: Calibration | None, load: Load
) -> int:
    """Return which full chunk from the last on makes the longest step: 1, the last, but where local chunks begin again in between."""
    if load.budget is None or not any(
        isinstance(kind.attention.window, LocalChunks) for kind in deployment.architecture.kinds
    ):
        return 1
    if rung == "textbook":
        chunks, _ = textbook_spike(build_textbook(deployment, params), load)
    else:
        rates = CalibratedRates(fitted) if rung == "calibrated" and fitted else None
        chunks, _ = longest_step(
            build_parameters(deployment, rates) if rates else roofline_parameters(deployment), load
        )
    room = load.budget - load.streams
    return max(load.prompt // room - int(chunks[0].cached) // room, 1)


def _chunk(
    name: FormulaName, prompt: int, streams: int, budget: int | None, back: int
) -> tuple[Chunk | None, dict[Any, float], tuple[Definitions, ...]]:
    """Return the chunk of a formula in symbols, the numbers of its symbols, and what they stand for.

    Under a token budget two chunks may make the longest step: the last full one, and the remainder after it, which is shorter but has
    more before it to attend to. Both are right for every n, also where the whole prompt fits. In local chunks it may be the full one
    that is ``back`` from the last on.
    """
    n, q, s, m, decoding = (symbol(item) for item in ("n", "q", "s", "m", "D"))
    if name == "decode":
        return None, {}, ((),)
    if name == "mixed":
        return Chunk(q, s), {q: float(prompt if budget is None else min(budget - streams, prompt)), s: 0.0}, ((),)
    if name == "prefill" or budget is None:
        return Chunk(n), {n: float(prompt)}, ((),)
    room = m - decoding
    full = sympy.floor(n / room)
    last = ((q, sympy.Min(n, room)), (s, sympy.Max(full - 1, 0) * room))
    remainder = ((q, n - full * room), (s, full * room))
    before = (((q, room), (s, (full - back) * room)),) if back > 1 else ()
    return Chunk(q, s), {n: float(prompt), m: float(budget)}, (last, remainder, *before)


def _work(name: FormulaName, chunk: Chunk | None, windows: tuple[Reach, ...]) -> Work:
    decodes = [] if name == "prefill" else [Decodes(symbol("D"), symbol("c"))]
    return make_work([] if chunk is None else [chunk], decodes, windows)


def _term(operator: OperatorTime[Any]) -> Term:
    return Term(operator.name, sympy.sympify(operator.seconds))


def _textbook_terms(model: Textbook, chunk: Chunk | None) -> tuple[Term, ...]:
    if chunk is None:
        return (Term("weights", textbook_decode(model)),)
    return (
        Term("linear", textbook_linear(model, chunk.tokens)),
        Term("attention", textbook_attention(model, chunk.tokens, chunk.cached)),
    )


SUFFIXES: Final = {
    "latency_per_log2_s": "_log2",
    "latency_per_hop_s": "_hop",
    "two_shot_s": "_two",
    "large_s": "_large",
    "protocol_s": "_protocol",
    "sharing_power": "_power",
    "small_sharing": "_small",
    "kv_passes": "_kv",
}
"""What tells apart parameters of one form that share a symbol."""


def symbolic_rates(calibration: Calibration) -> tuple[CalibratedRates, dict[Any, float]]:
    """Return rates whose fitted factors are symbols, e.g. ``e_c_gemm_bf16``, and their values."""
    values: dict[Any, float] = {}
    names = {
        "compute_efficiency": "e_c",
        "bandwidth_efficiency": "e_b",
        "launch_s": "t_0",
        "sharpness": "p",
        "passes": "kappa",
        "latency_s": "alpha",
        "latency_per_log2_s": "alpha",
        "latency_per_hop_s": "alpha",
        "sharing": "s_b",
        "sharing_power": "s_b",
        "small_sharing": "s_b",
        "protocol_s": "alpha",
        "ramp_inputs": "k_0",
        "quantise_efficiency": "e_q",
        "depth_s": "t_k",
        "tile_rows": "T_q",
        "shared_passes": "omega",
        "tile_s": "t_t",
        "empty_tile_s": "t_e",
        "cached_bytes": "x_1",
        "kv_passes": "omega",
        "padding_tokens": "r",
        "saturation_s": "t_1",
        "saturation_tokens": "c_1",
        "two_shot_s": "alpha",
        "wave_s": "t_w",
        "extra_launch_s": "t_1",
        "key_s": "t_c",
        "large_s": "alpha",
        "one_shot_efficiency": "e_1",
        "per_layer_s": "t_layer",
        "per_step_s": "t_step",
        "per_moe_layer_s": "t_moe",
        "per_normed_layer_s": "t_norm",
        "per_sequence_s": "t_seq",
        "hidden": "o",
        "padding_rows": "T_x",
        "expert_s": "t_x",
    }

    def number(key: str, name: str) -> Any:
        value = calibration.operators[key].number(name)
        form = calibration.operators[key].form
        if name not in calibration.operators[key].parameters and value == FORMS[form][name][0]:
            return value if value != 1.0 else 1
        if name not in names or value == 0:
            return value
        suffix = SUFFIXES.get(name, "")
        made = symbol(re.sub(r"\W", "_", f"{names[name]}_{key}{suffix}", flags=re.ASCII))
        values[made] = value
        return made

    return CalibratedRates(calibration, number), values
