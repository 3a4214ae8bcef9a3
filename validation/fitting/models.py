"""The time of one kernel as a SymPy expression of its shape and of the fitted parameters, taken from the step equations themselves.

Nothing is written twice: each model builds the operator that a prediction would build, with symbols, and reads off its seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import sympy

from costmodel.equations.numerics import total
from costmodel.equations.parameters import AttentionKernel, Gemm, Parameters
from costmodel.equations.rate_sources import DatasheetRates, RateSource
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import step_operators
from costmodel.equations.work import Chunk, Decodes, Window, Work, attended_pairs, chunk_kv, make_work
from costmodel.hardware.calibration import FORMS, Calibration
from costmodel.hardware.errors import InputError

Build = Callable[[RateSource], Parameters]
"""How an operator is built once it is known where its rates come from."""

PLACEHOLDER = {"data": "being fitted", "rows": 1, "date": "2000-01-01", "command": "being fitted"}


@dataclass(frozen=True, slots=True)
class KernelModel:
    """One operator's time in symbols.

    Attributes:
        operator: key in a calibration.
        form: named form.
        expression: seconds.
        floor: seconds at datasheet rates: the physical floor.
        parameters: names of the fitted parameters; their symbols carry the same names.
        inputs: names of the shape's symbols, in the order in which data are given.
    """

    operator: str
    form: str
    expression: Any
    floor: Any
    parameters: tuple[str, ...]
    inputs: tuple[str, ...]


def without(model: KernelModel, dropped: Iterable[str]) -> KernelModel:
    """Return a model without some parameters, which must be such that zero takes their term away."""
    names = set(dropped)
    zeros = {symbol: 0 for symbol in model.expression.free_symbols if str(symbol) in names}
    kept = tuple(name for name in model.parameters if name not in names)
    return replace(model, expression=model.expression.subs(zeros), parameters=kept)


def gemm_model(
    operator: str, form: str, free: tuple[str, ...], peak: float, bandwidth: float, weight_bytes: float
) -> KernelModel:
    """Return the model of a matrix product: ``tokens`` rows, ``inputs`` k, ``outputs`` m.

    Args:
        operator: key in the calibration, e.g. ``gemm.bf16``.
        form: ``smooth_roofline``, ``gemm_split`` or ``gemm_quant``.
        free: parameters to fit; the others keep their defaults.
        peak, bandwidth: datasheet F [FLOP/s] and W [B/s].
        weight_bytes: bytes of a weight, and of an input as the kernel reads it; outputs take 2 bytes.
    """
    tokens, inputs, outputs = (_count(name) for name in ("tokens", "inputs", "outputs"))
    name, _, dtype = operator.partition(".")

    def build(rates: RateSource) -> Parameters:
        gemm = Gemm(
            name="gemm",
            group="linear",
            flops_per_token=2 * inputs * outputs,
            weight_bytes=inputs * outputs * weight_bytes,
            io_bytes_per_token=inputs * weight_bytes + outputs * 2,
            count=1,
            rate=rates.kernel(name, dtype, peak, bandwidth, inputs, outputs),
        )
        return Parameters((gemm,), (), ())

    work = Work(tokens, tokens, tokens, 0, {}, {}, {})
    return _model(operator, form, free, build, work, ("tokens", "inputs", "outputs"))


def prefill_model(
    operator: str,
    form: str,
    free: tuple[str, ...],
    peak: float,
    bandwidth: float,
    units: float,
    kv_bytes: float,
    window: Window = None,
) -> KernelModel:
    """Return the model of prefill attention: ``batch`` sequences of ``tokens`` after ``cached`` ones."""
    batch, tokens, heads, kv_heads, head_dim = map(_count, ("batch", "tokens", "heads", "kv_heads", "head_dim"))
    cached = sympy.Symbol("cached", nonnegative=True, integer=True)
    work = Work(
        tokens=batch * tokens,
        rows=batch,
        prefills=batch,
        decodes=0,
        pairs={window: batch * attended_pairs(tokens, cached, window)},
        prefill_kv={window: batch * chunk_kv(tokens, cached, window)},
        decode_kv={window: 0},
        chunks=(Chunk(tokens, cached),),
    )
    build = _attention(operator, peak, bandwidth, units, kv_bytes, window, (heads, kv_heads, head_dim))
    return _model(operator, form, free, build, work, ("batch", "tokens", "cached", "heads", "kv_heads", "head_dim"))


def decode_model(
    operator: str,
    form: str,
    free: tuple[str, ...],
    peak: float,
    bandwidth: float,
    kv_bytes: float,
    windowed: bool = False,
) -> KernelModel:
    """Return the model of decode attention: ``batch`` sequences that each read ``read`` KV tokens, those of the window if there is one."""
    batch, read, heads, kv_heads, head_dim = map(_count, ("batch", "read", "heads", "kv_heads", "head_dim"))
    work = Work(batch, batch, 0, batch, {None: 0}, {None: 0}, {None: batch * read})
    build = _attention(operator, peak, bandwidth, 1, kv_bytes, None, (heads, kv_heads, head_dim), windowed)
    return _model(operator, form, free, build, work, ("batch", "read", "heads", "kv_heads", "head_dim"))


def mixed_model(
    operator: str,
    free: tuple[str, ...],
    peak: float,
    bandwidth: float,
    units: float,
    kv_bytes: float,
    heads: tuple[int, int, int],
) -> KernelModel:
    """Return the model of attention in a step with prefill: a chunk of ``tokens`` after ``cached`` ones, ``decodes`` at ``context``.

    Args:
        operator: key in the calibration, e.g. ``prefill_attention.bf16``; its form is ``mixed_tiles``.
        free: parameters to fit.
        peak, bandwidth, units: datasheet F [FLOP/s], W [B/s] and multiprocessors.
        kv_bytes: bytes of a KV element.
        heads: query heads, KV heads and their dimension.
    """
    tokens = _count("tokens")
    cached, decodes, context = (
        sympy.Symbol(name, nonnegative=True, integer=True) for name in ("cached", "decodes", "context")
    )
    build = _attention(operator, peak, bandwidth, units, kv_bytes, None, heads)
    work = make_work([Chunk(tokens, cached)], [Decodes(decodes, context)])
    return _model(operator, "mixed_tiles", free, build, work, ("tokens", "cached", "decodes", "context"))


def elementwise_model(free: tuple[str, ...], bandwidth: float, hidden: int) -> KernelModel:
    """Return the model of a layer's elementwise kernels for ``tokens`` of ``hidden`` 16-bit activations."""

    def build(rates: RateSource) -> Parameters:
        return Parameters((), (), (), elementwise=rates.elementwise(1, hidden, 2, bandwidth))

    tokens = _count("tokens")
    return _model("elementwise", "elementwise", free, build, Work(tokens, 1, 1, 0, {}, {}, {}), ("tokens",))


def all_reduce_model(form: str, free: tuple[str, ...], link_bandwidth: float) -> KernelModel:
    """Return the model of an all-reduce of ``message`` bytes among ``gpus``."""
    gpus, message = _count("gpus"), sympy.Symbol("message", positive=True)

    def build(rates: RateSource) -> Parameters:
        sent = 2 * (gpus - 1) / gpus * message
        return Parameters((), (), (), (rates.transfer("all_reduce", "all_reduce", 1, sent, link_bandwidth, gpus),))

    return _model("all_reduce", form, free, build, Work(1, 1, 1, 0, {}, {}, {}), ("gpus", "message"))


def _attention(
    operator: str,
    peak: float,
    bandwidth: float,
    units: float,
    kv_bytes: float,
    window: Window,
    shape: tuple[Any, Any, Any],
    windowed: bool = False,
) -> Build:
    heads, kv_heads, head_dim = shape
    name, _, dtype = operator.partition(".")
    pair = 4 * heads * head_dim

    def build(rates: RateSource) -> Parameters:
        rate = rates.kernel(name, dtype, peak, bandwidth)
        kernel = AttentionKernel(
            window=window,
            suffix="",
            flops_per_pair=pair,
            flops_per_kv_token=pair,
            kv_bytes_per_token=2 * kv_heads * head_dim * kv_bytes,
            count=1,
            prefill_rate=rate,
            decode_rate=rate,
            prefill_tile=rates.prefill_tile(rate, heads * 2 * head_dim * 2, 4 * head_dim * units),
            decode_split=rates.decode_split(rate, heads, kv_heads, head_dim, 1, windowed),
            mixed_tiles=rates.mixed_tiles(rate, heads / units, 4 * head_dim * units, 1),
        )
        return Parameters((), (), (kernel,))

    return build


def _rates(operator: str, form: str, free: tuple[str, ...]) -> CalibratedRates:
    """Return rates whose free parameters are symbols."""
    if unknown := [name for name in free if name not in FORMS[form]]:
        raise InputError(f"form {form} has no parameter {unknown[0]!r}; it has {', '.join(FORMS[form])}")
    values = {name: {"value": 1.0 if name.endswith("efficiency") else FORMS[form][name][1]} for name in free}
    calibration = Calibration.model_validate(
        {
            "schema": "costmodel.calibration/1",
            "name": "being fitted",
            "gpu": "any",
            "engine": "vllm",
            "provenance": PLACEHOLDER,
            "operators": {operator: {"form": form, "parameters": values}},
        }
    )

    def number(key: str, name: str) -> Any:
        if name in free:
            return sympy.Symbol(name, positive=True)
        default = FORMS[form][name][0]
        return int(default) if float(default).is_integer() else default

    return CalibratedRates(calibration, number)


def _model(
    operator: str, form: str, free: tuple[str, ...], build: Build, work: Work, inputs: tuple[str, ...]
) -> KernelModel:
    """Read the seconds of the operators off, with fitted rates and at datasheet rates."""
    sources: tuple[RateSource, ...] = (_rates(operator, form, free), DatasheetRates())
    fitted, floor = (
        sympy.sympify(total(item.seconds for item in step_operators(build(rates), work))) for rates in sources
    )
    return KernelModel(operator, form, fitted, floor, free, inputs)


model_of = _model
"""For operators that are built in a module of their own."""


def _count(name: str) -> Any:
    return sympy.Symbol(name, positive=True, integer=True)
