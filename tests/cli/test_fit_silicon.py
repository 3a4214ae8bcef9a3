"""``costmodel fit`` of one part and engine, once: what it says and writes, and that it is the shipped calibration."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result

import costmodel
from costmodel.hardware.calibration import Calibration, Residuals, read_calibration
from costmodel.hardware.shipped import shipped_calibration
from tests.cli.runner import parse, run
from tests.cli.test_fit_command import KERNELS

GPU, ENGINE = "h100-sxm", "vllm"


@pytest.fixture(scope="module")
def shipped() -> Calibration:
    found = shipped_calibration(GPU, ENGINE)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """Its kernels from all kernel tables, and the overheads of all engines beside the kernels that are shipped."""
    pytest.importorskip("aiconfigurator_core", reason="aiconfigurator-core is not installed (extra: silicon)")
    path = tmp_path_factory.mktemp("fit") / "h100.toml"
    return run(["fit", "--gpu", "h100", "--json", "--output", str(path)]), path


@pytest.fixture(scope="module")
def made(fitted: tuple[Result, Path]) -> Calibration:
    return read_calibration(fitted[1])


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


def test_by_default_the_engines_overheads_are_fitted_too(fitted: tuple[Result, Path], made: Calibration) -> None:
    """What the kernels alone leave out is there, and steps get longer by it."""
    result, path = fitted
    assert result.exit_code == 0, result.stderr or result.exception
    assert [item["operator"] for item in parse(result.stdout)["operators"]] == KERNELS
    assert made.provenance.command == f"costmodel fit --dataset silicon --gpu {GPU} --engine {ENGINE} --seed 0"
    assert {*KERNELS, "elementwise", "overhead.graph", "overhead.eager"} <= made.operators.keys()
    assert made.end_to_end
    found = costmodel.predict(calibration=path)
    assert not any("not in the calibration" in text for text in found.warnings)
    kernels = {name: made.operators[name] for name in KERNELS}
    alone = costmodel.predict(calibration=made.model_copy(update={"operators": kernels}))
    assert alone.best.decode_step_s < found.best.decode_step_s
    assert alone.best.prefill_s < found.best.prefill_s
