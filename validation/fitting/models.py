"""The time of one kernel as a SymPy expression of its shape and of the fitted parameters, taken from the step equations themselves.

Nothing is written twice: each model builds the operator that a prediction would build, with symbols, and reads off its seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy

from costmodel.equations.numerics import is_symbolic
from costmodel.equations.parameters import AttentionKernel, Gemm, Parameters
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import step_operators
from costmodel.equations.work import Chunk, Window, Work, attended_pairs, chunk_kv
from costmodel.hardware.calibration import FORMS, Calibration
from costmodel.hardware.errors import InputError

PLACEHOLDER = {"data": "being fitted", "rows": 1, "date": "2000-01-01", "command": "being fitted"}


@dataclass(frozen=True, slots=True)
class KernelModel:
    """One operator's time in symbols.

    Attributes:
        operator: key in a calibration.
        form: named form.
        expression: seconds.
        parameters: names of the fitted parameters; their symbols carry the same names.
        inputs: names of the shape's symbols, in the order in which data are given.
    """

    operator: str
    form: str
    expression: Any
    parameters: tuple[str, ...]
    inputs: tuple[str, ...]


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
    rates = _rates(operator, form, free)
    name, _, dtype = operator.partition(".")
    gemm = Gemm(
        name="gemm",
        group="linear",
        flops_per_token=2 * inputs * outputs,
        weight_bytes=inputs * outputs * weight_bytes,
        io_bytes_per_token=inputs * weight_bytes + outputs * 2,
        count=1,
        rate=rates.kernel(name, dtype, peak, bandwidth, inputs, outputs),
    )
    work = Work(tokens, tokens, tokens, 0, {}, {}, {})
    return _model(operator, form, free, Parameters((gemm,), (), ()), work, ("tokens", "inputs", "outputs"))


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
    batch, tokens, heads, kv_heads, head_dim = (
        _count(name) for name in ("batch", "tokens", "heads", "kv_heads", "head_dim")
    )
    cached = sympy.Symbol("cached", nonnegative=True, integer=True)
    kernel = _attention(operator, form, free, peak, bandwidth, units, kv_bytes, window, (heads, kv_heads, head_dim))
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
    inputs = ("batch", "tokens", "cached", "heads", "kv_heads", "head_dim")
    return _model(operator, form, free, Parameters((), (), (kernel,)), work, inputs)


def decode_model(
    operator: str, form: str, free: tuple[str, ...], peak: float, bandwidth: float, kv_bytes: float
) -> KernelModel:
    """Return the model of decode attention: ``batch`` sequences that each read ``read`` KV tokens."""
    batch, read, heads, kv_heads, head_dim = (
        _count(name) for name in ("batch", "read", "heads", "kv_heads", "head_dim")
    )
    kernel = _attention(operator, form, free, peak, bandwidth, 1, kv_bytes, None, (heads, kv_heads, head_dim))
    work = Work(batch, batch, 0, batch, {None: 0}, {None: 0}, {None: batch * read})
    inputs = ("batch", "read", "heads", "kv_heads", "head_dim")
    return _model(operator, form, free, Parameters((), (), (kernel,)), work, inputs)


def all_reduce_model(form: str, free: tuple[str, ...], link_bandwidth: float) -> KernelModel:
    """Return the model of an all-reduce of ``message`` bytes among ``gpus``."""
    gpus, message = _count("gpus"), sympy.Symbol("message", positive=True)
    rates = _rates("all_reduce", form, free)
    transfer = rates.transfer("all_reduce", "all_reduce", 1, 2 * (gpus - 1) / gpus * message, link_bandwidth, gpus)
    work = Work(1, 1, 1, 0, {}, {}, {})
    return _model("all_reduce", form, free, Parameters((), (), (), (transfer,)), work, ("gpus", "message"))


def _attention(
    operator: str,
    form: str,
    free: tuple[str, ...],
    peak: float,
    bandwidth: float,
    units: float,
    kv_bytes: float,
    window: Window,
    shape: tuple[Any, Any, Any],
) -> AttentionKernel:
    heads, kv_heads, head_dim = shape
    rates = _rates(operator, form, free)
    name, _, dtype = operator.partition(".")
    rate = rates.kernel(name, dtype, peak, bandwidth)
    pair = 4 * heads * head_dim
    return AttentionKernel(
        window=window,
        suffix="",
        flops_per_pair=pair,
        flops_per_kv_token=pair,
        kv_bytes_per_token=2 * kv_heads * head_dim * kv_bytes,
        count=1,
        prefill_rate=rate,
        decode_rate=rate,
        prefill_tile=rates.prefill_tile(rate, heads * 2 * head_dim * 2, 4 * head_dim * units),
        decode_split=rates.decode_split(rate),
    )


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
            "engine": "any",
            "provenance": PLACEHOLDER,
            "operators": {operator: {"form": form, "parameters": values}},
        }
    )

    def number(key: str, name: str) -> Any:
        if name in free:
            return sympy.Symbol(name, positive=True)
        default = FORMS[form][name][0]
        return int(default) if default in (0.0, 1.0) else default

    return CalibratedRates(calibration, number)


def _model(
    operator: str, form: str, free: tuple[str, ...], parameters: Parameters, work: Work, inputs: tuple[str, ...]
) -> KernelModel:
    (found,) = step_operators(parameters, work)
    if not is_symbolic(found.seconds):
        raise InputError(f"nothing to fit: {operator} has no free parameter")
    return KernelModel(operator, form, found.seconds, free, inputs)


def _count(name: str) -> Any:
    return sympy.Symbol(name, positive=True, integer=True)
