"""The type of a calibration: fitted efficiencies and overheads of one GPU and engine. Datasheet numbers are never stored here.

A calibration is a versioned map from operator to form and parameters. An operator that it does not name stays at datasheet rates.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from costmodel.hardware.profile import Frozen, read_toml

FORMS: Final[dict[str, dict[str, tuple[float, float, float]]]] = {
    "smooth_roofline": {
        "compute_efficiency": (1.0, 0.0, 1.0),
        "bandwidth_efficiency": (1.0, 0.0, 1.0),
        "launch_s": (0.0, 0.0, 1.0),
        "sharpness": (math.inf, 1.0, math.inf),
    },
    "elementwise": {
        "passes": (0.0, 0.0, 1e3),
        "bandwidth_efficiency": (1.0, 0.0, 1.0),
        "launch_s": (0.0, 0.0, 1.0),
    },
    "link": {
        "latency_s": (0.0, 0.0, 1.0),
        "latency_per_log2_s": (0.0, 0.0, 1.0),
        "bandwidth_efficiency": (1.0, 0.0, 1.0),
        "imbalance": (1.0, 1.0, 1e3),
    },
    "overhead": {
        "per_layer_s": (0.0, 0.0, 1.0),
        "per_step_s": (0.0, 0.0, 10.0),
        "graph_multiple": (1.0, 1.0, 1024.0),
    },
}
"""Named forms and, for each of their parameters, the default and the bounds [low, high] it must keep.

``smooth_roofline``: launch_s + smooth_max(FLOPs/(compute_efficiency·F), bytes/(bandwidth_efficiency·W), sharpness) per kernel.
``elementwise``: launch_s per layer + passes·N·d·b_a/(bandwidth_efficiency·W) per layer; passes is κ of the nomenclature.
``link``: latency_s + latency_per_log2_s·log2(t) + bytes/(bandwidth_efficiency·B_link), times imbalance for the bytes.
``overhead``: L·per_layer_s + per_step_s; graph_multiple pads the batch of a decode step (CUDA graphs are captured in steps).
"""

OPERATORS: Final = {
    "gemm": "smooth_roofline",
    "lm_head": "smooth_roofline",
    "experts": "smooth_roofline",
    "prefill_attention": "smooth_roofline",
    "decode_attention": "smooth_roofline",
    "elementwise": "elementwise",
    "all_reduce": "link",
    "dispatch": "link",
    "pipeline": "link",
    "overhead.graph": "overhead",
    "overhead.eager": "overhead",
}
"""Operators a calibration may name and their form. The first five may carry a dtype suffix: ``gemm.bf16`` goes before ``gemm``."""

DTYPE_SUFFIXED: Final = ("gemm", "lm_head", "experts", "prefill_attention", "decode_attention")


class FittedParameter(Frozen):
    """One fitted number. Seconds, or a ratio; the name says which."""

    value: float
    standard_error: Annotated[float, Field(ge=0)] | None = None
    lower: float | None = None
    """Bounds that the fit kept it in."""
    upper: float | None = None


class Residuals(Frozen):
    """Held-out relative residuals, measured/predicted − 1: the central interval of ``level``."""

    level: Annotated[float, Field(gt=0, lt=1)]
    low: Annotated[float, Field(gt=-1)]
    high: float

    @model_validator(mode="after")
    def _ordered(self) -> Residuals:
        if self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")
        return self


class FittedOperator(Frozen):
    """Form and parameters of one operator, and what they were fitted on."""

    form: str
    parameters: dict[str, FittedParameter]
    residuals: Residuals | None = None
    ranges: dict[Literal["tokens", "kv_tokens", "flops", "bytes"], tuple[float, float]] = Field(default_factory=dict)
    """Smallest and largest value of each variable in the data; outside them a prediction is an extrapolation."""

    def number(self, name: str) -> float:
        """Return parameter ``name``, or the form's default where the calibration leaves it out."""
        fitted = self.parameters.get(name)
        return FORMS[self.form][name][0] if fitted is None else fitted.value

    @model_validator(mode="after")
    def _fits_its_form(self) -> FittedOperator:
        if self.form not in FORMS:
            raise ValueError(f"form {self.form!r} is unknown; known forms: {', '.join(FORMS)}")
        for name, parameter in self.parameters.items():
            if name not in FORMS[self.form]:
                raise ValueError(f"form {self.form} has no parameter {name!r}; it has {', '.join(FORMS[self.form])}")
            _, low, high = FORMS[self.form][name]
            exclusive = name.endswith("efficiency")
            if not low <= parameter.value <= high or (exclusive and parameter.value == low):
                bracket = "(" if exclusive else "["
                raise ValueError(f"{name} = {parameter.value:g} is outside {bracket}{low:g}, {high:g}]")
        if self.form == "overhead" and self.number("graph_multiple") % 1:
            raise ValueError("graph_multiple must be a whole number")
        for variable, (low, high) in self.ranges.items():
            if low > high:
                raise ValueError(f"range of {variable} is empty: {low:g} to {high:g}")
        return self


class Provenance(Frozen):
    """How the calibration came about, so that anyone can make it again."""

    data: str = Field(min_length=3)
    rows: Annotated[int, Field(ge=1)]
    date: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")
    command: str = Field(min_length=3)
    versions: dict[str, str] = Field(default_factory=dict)


class Calibration(Frozen):
    """Fitted factors of one GPU part and one engine."""

    schema_: Literal["costmodel.calibration/1"] = Field(alias="schema")
    name: str = Field(min_length=2)
    gpu: str
    """Canonical name of the GPU profile that the factors multiply."""
    engine: str
    provenance: Provenance
    operators: dict[str, FittedOperator] = Field(min_length=1)
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _operators_are_known(self) -> Calibration:
        for key, operator in self.operators.items():
            base, _, suffix = key.partition(".")
            known = key if key in OPERATORS else base if suffix and base in DTYPE_SUFFIXED else None
            if known is None:
                raise ValueError(f"operator {key!r} is unknown; known operators: {', '.join(OPERATORS)}")
            if operator.form != OPERATORS[known]:
                raise ValueError(f"operator {key!r} takes form {OPERATORS[known]!r}, not {operator.form!r}")
        return self

    def find(self, operator: str, dtype: str | None = None) -> tuple[str, FittedOperator] | None:
        """Return (key, fit) of an operator, the entry for ``dtype`` before the general one; None if neither is there."""
        for key in (f"{operator}.{dtype}", operator):
            if key in self.operators:
                return key, self.operators[key]
        return None


def read_calibration(path: Path) -> Calibration:
    """Read a calibration from a TOML file.

    Raises:
        InputError: the file is missing, unreadable, not TOML, or breaks the schema (first fault named).
    """
    return read_toml(path, Calibration, what="calibration")
