"""What a formula stands for: the same spike as ``predict``, one symbol per number, code that stands on its own."""

from __future__ import annotations

import keyword
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.architecture.formats import PLAIN_FORMATS, WeightFormat
from costmodel.architecture.types import Architecture, Attention, FeedForward, LayerFormats, LayerKind
from costmodel.building import build_parameters
from costmodel.deployment import deploy
from costmodel.equations.step import step_times
from costmodel.equations.work import Decodes, make_work
from costmodel.errors import InputError
from costmodel.hardware.shipped import shipped_calibration, shipped_calibrations
from costmodel.prediction import predict
from costmodel.symbolic.export import to_python
from costmodel.symbolic.formulas import FORMULA_NAMES, formula, symbolic_rates
from costmodel.symbolic.nomenclature import symbol
from costmodel.symbolic.sensitivity import elasticities
from tests.strategies import calibration_of, deployment_of, examples

CALIBRATION = calibration_of(
    {
        "gemm": {"form": "smooth_roofline", "parameters": {"compute_efficiency": {"value": 0.8}, "sharpness": {"value": 3}}},
        "prefill_attention": {"form": "smooth_roofline", "parameters": {"compute_efficiency": {"value": 0.6}}},
    }
)  # fmt: skip


@pytest.mark.parametrize("rung", ["textbook", "roofline", "calibrated"])
@examples(12, shrink=False)
@given(st.sampled_from(["Llama-3.1-8B", "gpt-oss-20b"]), st.integers(1, 20_000), st.integers(33, 9000))
def test_spike_formula_is_the_spike_of_predict(rung: Any, model: str, prompt: int, budget: int) -> None:
    # The last full chunk or the remainder after it, whichever takes longer; n, m and D are its symbols.
    expected = predict(prompt, model=model, chunk=budget, calibration=CALIBRATION).rungs.get(rung).spike_s
    made = formula(deploy(model, "h100"), "spike", rung, prompt=prompt, chunk=budget, calibration=CALIBRATION)
    assert made.evaluate() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("rung", ["roofline", "calibrated"])
def test_a_remainder_may_be_the_longest_chunk(rung: Any) -> None:
    # 8191 = 4096 + 4095: the remainder is one token shorter, but attends to 4096 more.
    made = formula(deploy("Llama-3.1-8B", "h100"), "spike", rung, prompt=8191, chunk=4128)
    assert made.evaluate() == pytest.approx(predict(8191, chunk=4128).rungs.get(rung).spike_s, rel=1e-12)


@pytest.mark.parametrize("name", FORMULA_NAMES)
@pytest.mark.parametrize("rung", ["textbook", "roofline", "calibrated"])
def test_every_symbol_has_a_number(name: Any, rung: Any) -> None:
    made = formula(deploy("gpt-oss-20b", "h100", tp=4), name, rung, calibration=CALIBRATION)
    assert made.expression.free_symbols == set(made.arguments)
    assert len({str(item) for item in made.arguments}) == len(made.arguments)
    assert made.evaluate() > 0


@pytest.mark.parametrize("name", FORMULA_NAMES)
@pytest.mark.parametrize("rung", ["textbook", "roofline", "calibrated"])
@pytest.mark.parametrize("model", ["Llama-3.1-8B", "DeepSeek-V3"])
def test_exported_python_gives_the_same_number(name: Any, rung: Any, model: str) -> None:
    made = formula(deploy(model, "h100", tp=8), name, rung, calibration=CALIBRATION)
    space: dict[str, Any] = {}
    exec(to_python(made), space)
    assert space[f"{name}_s"]() == pytest.approx(made.evaluate(), rel=1e-12)


@pytest.mark.parametrize("rung", ["textbook", "roofline", "calibrated"])
def test_elasticities_obey_scaling(rung: Any) -> None:
    # Time is homogeneous of degree −1 in the part's speeds: 1 % more of all of them is 1 % less time.
    made = formula(deploy("Llama-3.1-8B", "h100"), "spike", rung, calibration=CALIBRATION)
    speeds = sum(item.value for item in elasticities(made) if str(item.symbol) in ("F", "W", "B_link"))
    assert speeds == pytest.approx(-1.0, rel=1e-9)


def test_unknown_formulas_are_refused() -> None:
    with pytest.raises(InputError, match="known: decode"):
        formula(deploy("Llama-3.1-8B", "h100"), "guess")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no calibration of mi300x for vllm"):
        formula(deploy("Llama-3.1-8B", "mi300x"), "decode", "calibrated")
    with pytest.raises(InputError, match="no calibration of h100-sxm for vllm"):
        formula(deploy("Llama-3.1-8B", "h100"), "decode", "calibrated", calibration="none")


def test_two_formats_of_one_name_have_two_symbols() -> None:
    # 4-bit weights with groups of 128 in the layers and of 32 in attention, lm_head with groups of 64.
    coarse, fine = WeightFormat("int4", 128, 20, True), WeightFormat("int4", 32, 20, True)
    formats = LayerFormats(fine, coarse, coarse, PLAIN_FORMATS["bf16"])
    kind = LayerKind(Attention("gqa", 32, 8, 128, 128), FeedForward("dense", 14336), formats)
    architecture = Architecture("synthetic", "synthetic", 4096, 32_000, (kind,), (0,) * 32, "bf16", False)
    deployment = deployment_of(replace(architecture, lm_head_format=WeightFormat("int4", 64, 20, True)))
    parameters = build_parameters(deployment)
    times = step_times(parameters, make_work(decodes=[Decodes(32, 500)], windows=parameters.windows))
    assert formula(deployment, "decode").evaluate() == pytest.approx(times.total, rel=1e-12)


@pytest.mark.parametrize(("prompt", "chunk"), [(8064, 2048), (8191, 4128), (1000, 2048), (16_000, 512)])
def test_elasticities_of_a_chunked_spike(prompt: int, chunk: int) -> None:
    # In the longest chunk, which may be the last full one or the remainder: against central differences.
    made = formula(deploy("Llama-3.1-8B", "a100"), "spike", prompt=prompt, chunk=chunk)
    found = {str(item.symbol): item.value for item in elasticities(made)}
    for name in ("F", "W", "h", "d_ff", "c"):
        step = made.values[symbol(name)] * 1e-6
        slope = made.evaluate(**{name: made.values[symbol(name)] + step}) - made.evaluate(
            **{name: made.values[symbol(name)] - step}
        )
        assert found[name] == pytest.approx(slope / 2e-6 / made.evaluate(), abs=1e-6)


def test_the_count_that_was_asked_for_is_the_p_of_a_mixture() -> None:
    mixture = deploy("Mixtral-8x7B-v0.1")
    asked, own = (formula(mixture, "decode", "textbook", params=params) for params in (47e9, None))
    assert asked.values[symbol("P")] == 47e9
    assert asked.values[symbol("b")] == pytest.approx(own.values[symbol("b")])
    assert asked.evaluate() / own.evaluate() == pytest.approx(47e9 / own.values[symbol("P")])


@pytest.mark.parametrize("pair", shipped_calibrations(), ids="-".join)
def test_every_symbol_of_a_shipped_calibration_is_an_identifier(pair: tuple[str, str]) -> None:
    """Exports take them as arguments, in Python and JavaScript."""
    calibration = shipped_calibration(*pair)
    assert calibration is not None
    rates, values = symbolic_rates(calibration)
    for key, operator in calibration.operators.items():
        for name in operator.parameters:
            made = rates.number(key, name)
            assert made not in values or (str(made).isidentifier() and str(made).isascii()), (key, name)
    assert len(values) > 5
    assert len({str(item) for item in values}) == len(values)
    assert not any(keyword.iskeyword(str(item)) for item in values)
