"""The shipped calibration of one part and engine, fitted again from the measurements."""

from __future__ import annotations

import pytest

from costmodel.hardware.calibration import Calibration, Residuals
from costmodel.hardware.shipped import shipped_calibration
from costmodel.validation.fitting.kernels import fit_kernels
from costmodel.validation.fitting.silicon import fit_all_engines, kernels_of, silicon_calibration

GPU, ENGINE = "h100-sxm", "vllm"
COMMAND = f"costmodel fit --dataset silicon --gpu {GPU} --engine {ENGINE} --seed 0"


@pytest.fixture(scope="module")
def shipped() -> Calibration:
    found = shipped_calibration(GPU, ENGINE)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def made() -> Calibration:
    """Its kernels from all kernel tables, and the overheads of all engines beside the kernels that are shipped."""
    pytest.importorskip("aiconfigurator_core", reason="aiconfigurator-core is not installed (extra: silicon)")
    return silicon_calibration(GPU, ENGINE, list(fit_kernels(GPU, ENGINE)), fit_all_engines(kernels_of), COMMAND)


def ends(residuals: Residuals | None) -> tuple[float, ...]:
    return (residuals.low, residuals.high) if residuals else ()


def test_the_same_operators_in_the_same_forms(made: Calibration, shipped: Calibration) -> None:
    forms, expected = (
        {key: (operator.form, set(operator.parameters)) for key, operator in each.operators.items()}
        for each in (made, shipped)
    )
    assert forms == expected
    assert len(forms) > 15


def test_every_parameter_is_found_again(made: Calibration, shipped: Calibration) -> None:
    """Within 1 %, or a twentieth of its standard error: what the data put at zero ends near it, not at one number."""
    for key, operator in shipped.operators.items():
        for name, parameter in operator.parameters.items():
            apart = max(1e-9, 0.05 * (parameter.standard_error or 0.0))
            found = made.operators[key].parameters[name].value
            assert found == pytest.approx(parameter.value, rel=0.01, abs=apart), (key, name)


def test_every_residual_is_found_again(made: Calibration, shipped: Calibration) -> None:
    for key, operator in shipped.operators.items():
        again = made.operators[key]
        assert ends(again.residuals) == pytest.approx(ends(operator.residuals), rel=0.02), key
        for found, expected in zip(again.regimes, operator.regimes, strict=True):
            assert found.up_to == pytest.approx(expected.up_to), key
            assert ends(found.residuals) == pytest.approx(ends(expected.residuals), rel=0.02, abs=1e-3), key
        assert again.ranges == operator.ranges
    for name, residuals in shipped.end_to_end.items():
        assert ends(made.end_to_end[name]) == pytest.approx(ends(residuals), rel=0.02), name


def test_where_it_comes_from_is_said_alike(made: Calibration, shipped: Calibration) -> None:
    assert (made.name, made.gpu, made.engine, made.notes) == (shipped.name, shipped.gpu, shipped.engine, shipped.notes)
    ours, theirs = made.provenance, shipped.provenance
    assert (ours.data, ours.rows, ours.command) == (theirs.data, theirs.rows, theirs.command)
