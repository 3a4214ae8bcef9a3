"""Where the rates of kernels and links come from: datasheet (roofline rung) or a calibration (calibrated rung)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from costmodel.equations.numerics import Value, log2
from costmodel.equations.parameters import Elementwise, Overheads, Rate, Transfer
from costmodel.hardware.calibration import Calibration, FittedOperator

FALLBACKS = {"experts": "gemm", "lm_head": "gemm"}
"""An operator that a calibration does not name runs at the rates of this one, if that is named."""


class RateSource(Protocol):
    """What turns datasheet peaks into the rates of kernels, links and overheads."""

    def kernel(self, operator: str, dtype: str, peak: Value, bandwidth: Value) -> Rate:
        """Return the rate of ``operator`` at ``dtype``."""

    def transfer(
        self, operator: str, name: str, count: Value, bytes_per_token: Value, bandwidth: Value, gpus: int
    ) -> Transfer:
        """Return a communication of ``count`` messages among ``gpus``."""

    def elementwise(
        self, layers: Value, hidden: Value, activation_bytes: Value, bandwidth: Value
    ) -> Elementwise | None:
        """Return the elementwise term, None if there is none."""

    def overheads(self, layers: Value) -> Overheads | None:
        """Return the engine's overheads, None if there are none."""


class DatasheetRates:
    """Roofline rung: every kernel at the dense datasheet peak, no elementwise term, no overheads."""

    def kernel(self, operator: str, dtype: str, peak: Value, bandwidth: Value) -> Rate:
        """Return the datasheet rate."""
        return Rate(peak, bandwidth)

    def transfer(
        self, operator: str, name: str, count: Value, bytes_per_token: Value, bandwidth: Value, gpus: int
    ) -> Transfer:
        """Return a communication at link bandwidth without latency."""
        return Transfer(name, count, bytes_per_token, 0, bandwidth)

    def elementwise(self, layers: Value, hidden: Value, activation_bytes: Value, bandwidth: Value) -> None:
        """Return None: not part of the floor."""

    def overheads(self, layers: Value) -> None:
        """Return None: not part of the floor."""


class CalibratedRates:
    """Calibrated rung: datasheet rates times fitted efficiencies, plus fitted launches and overheads.

    Args:
        calibration: fitted operators.
        number: how to read parameter ``name`` of operator ``key``; replaced by symbols in the symbolic reading.
    """

    def __init__(self, calibration: Calibration, number: Callable[[str, str], Value] | None = None) -> None:
        self.calibration = calibration
        self.number: Callable[[str, str], Value] = number or (lambda key, name: calibration.operators[key].number(name))
        self.missing: list[str] = []
        """Operators that were asked for and not found, so that they stay at datasheet rates."""

    def find(self, operator: str, dtype: str | None = None) -> str | None:
        """Return the key of the calibration's entry for an operator, by dtype first, then by fallback."""
        found: tuple[str, FittedOperator] | None = self.calibration.find(operator, dtype)
        if found is None and operator in FALLBACKS:
            found = self.calibration.find(FALLBACKS[operator], dtype)
        if found is None:
            name = f"{operator}.{dtype}" if dtype else operator
            if name not in self.missing:
                self.missing.append(name)
            return None
        return found[0]

    def kernel(self, operator: str, dtype: str, peak: Value, bandwidth: Value) -> Rate:
        """Return the calibrated rate, or the datasheet's where the calibration has none."""
        key = self.find(operator, dtype)
        if key is None:
            return Rate(peak, bandwidth)
        fitted = "sharpness" in self.calibration.operators[key].parameters
        return Rate(
            peak,
            bandwidth,
            self.number(key, "compute_efficiency"),
            self.number(key, "bandwidth_efficiency"),
            self.number(key, "launch_s"),
            self.number(key, "sharpness") if fitted else math.inf,
            key,
        )

    def transfer(
        self, operator: str, name: str, count: Value, bytes_per_token: Value, bandwidth: Value, gpus: int
    ) -> Transfer:
        """Return a communication with fitted latency α = latency_s + latency_per_log2_s·log2(gpus) and efficiency."""
        key = self.find(operator)
        if key is None:
            return Transfer(name, count, bytes_per_token, 0, bandwidth)
        latency = self.number(key, "latency_s") + self.number(key, "latency_per_log2_s") * log2(gpus)
        efficiency, imbalance = self.number(key, "bandwidth_efficiency"), self.number(key, "imbalance")
        return Transfer(name, count, bytes_per_token, latency, bandwidth, efficiency, imbalance, key)

    def elementwise(
        self, layers: Value, hidden: Value, activation_bytes: Value, bandwidth: Value
    ) -> Elementwise | None:
        """Return κ·L·N·d·b_a bytes at the fitted bandwidth, and a launch per layer."""
        key = self.find("elementwise")
        if key is None:
            return None
        moved = self.number(key, "passes") * layers * hidden * activation_bytes
        return Elementwise(
            moved, self.number(key, "bandwidth_efficiency") * bandwidth, layers * self.number(key, "launch_s")
        )

    def overheads(self, layers: Value) -> Overheads | None:
        """Return L·t_layer + t_step for graph and eager steps; one stands for both where only one was fitted."""
        graph, eager = self.find("overhead.graph"), self.find("overhead.eager")
        if graph is None and eager is None:
            return None
        seconds = [
            layers * self.number(key, "per_layer_s") + self.number(key, "per_step_s")
            for key in (graph or eager, eager or graph)
            if key is not None
        ]
        multiple = self.calibration.operators[graph].number("graph_multiple") if graph else 1.0
        return Overheads(seconds[0], seconds[1], int(multiple), graph or eager or "", eager or graph or "")
