"""An entry for the stored format of weights goes first; one that was fitted on another format is named in a warning."""

from __future__ import annotations

import pytest

from costmodel.architecture.formats import PLAIN_FORMATS, WeightFormat, format_name
from costmodel.building import build_parameters
from costmodel.clients import closed_loop
from costmodel.deployment import deploy
from costmodel.equations.rates import CalibratedRates
from costmodel.prediction import predict
from costmodel.validation.datasets.formats import QUANTISATIONS
from tests.model.samples import form
from tests.strategies import calibration_of


@pytest.mark.parametrize("name", [name for name in QUANTISATIONS if name != "fp16"])
def test_names_are_those_of_measured_kernels(name: str) -> None:
    kind = QUANTISATIONS[name]
    assert format_name(kind.weights, kind.compute) == name


def test_names_of_what_was_not_measured() -> None:
    assert format_name(PLAIN_FORMATS["fp8"], "bf16") == "fp8-weights"
    assert format_name(PLAIN_FORMATS["nvfp4"], "bf16") == "nvfp4-weights"
    assert format_name(PLAIN_FORMATS["mxfp4"], "fp16") == "mxfp4"
    assert format_name(WeightFormat("fp8", group_size=64 * 64, scale_bits=32), "fp8") == "fp8-block"


@pytest.mark.parametrize(
    ("model", "gpu", "dtype", "stored"),
    [
        ("gpt-oss-120b", "h200", None, "mxfp4"),
        ("gpt-oss-120b", "b200", None, "mxfp4-fp8"),
        ("MiniMax-M2", "h200", None, "fp8-block"),
        ("Qwen3-235B-A22B", "h200", "fp8-block", "fp8-block"),
        ("Qwen3-235B-A22B", "h200", "fp8", "fp8"),
        ("Qwen3-235B-A22B", "b200", "nvfp4", "nvfp4"),
        ("Qwen3-235B-A22B", "h200", None, "bf16"),
        ("Qwen3-235B-A22B", "a100", "fp8", "fp8-weights"),
    ],
)
def test_experts_of_a_deployment(model: str, gpu: str, dtype: str | None, stored: str) -> None:
    deployment = deploy(model, gpu, tp=8, dtype=dtype)
    fmt = deployment.architecture.kinds[-1].formats.experts
    assert format_name(fmt, deployment.compute_dtype_of(fmt)) == stored


def calibrated_by(*names: str) -> tuple[set[str], list[str]]:
    """Return the keys that a MiniMax-M2 step on H200 uses of a calibration with these entries, and what it borrowed."""
    rates = CalibratedRates(calibration_of({name: form("smooth_roofline") for name in names}))
    parameters = build_parameters(deploy("MiniMax-M2", "h200", tp=8), rates)
    return {kernel.rate.calibrated_by for kernel in parameters.experts}, rates.borrowed


@pytest.mark.parametrize(
    "order",
    ["experts.fp8-block", "experts.fp8", "experts", "gemm.fp8-block", "gemm.fp8", "gemm"],
)
def test_the_closest_entry_is_taken(order: str) -> None:
    names = ["experts.fp8-block", "experts.fp8", "experts", "gemm.fp8-block", "gemm.fp8", "gemm"]
    there = names[names.index(order) :]
    keys, borrowed = calibrated_by(*there)
    assert keys == {order}
    # Only the entries of plain fp8 were fitted on another format; general ones say nothing of formats.
    assert any(note.startswith("experts of fp8-block") for note in borrowed) == order.endswith(".fp8")


def test_entries_of_fp4_were_fitted_on_nvfp4() -> None:
    rates = CalibratedRates(calibration_of({"gemm.fp4": form("smooth_roofline")}))
    parameters = build_parameters(deploy("Qwen3-32B", "b200", dtype="nvfp4"), rates)
    assert "gemm.fp4" in {gemm.rate.calibrated_by for gemm in parameters.gemms}
    assert rates.borrowed == []


def test_a_borrowed_entry_is_named_in_the_warnings() -> None:
    fitted = calibration_of({"gemm.bf16": form("smooth_roofline")}, gpu="h200")
    warnings = predict(model="gpt-oss-120b", gpu="h200", calibration=fitted).warnings
    assert any("experts of mxfp4 weights at the rates of gemm.bf16" in text for text in warnings)


LATENT_NOTE = "decode_attention of latent heads (MLA) at the rates of decode_attention.bf16, fitted to grouped heads"


def test_latent_attention_at_the_rates_of_grouped_attention_is_named_in_the_warnings() -> None:
    for model, said in (("DeepSeek-V2-Lite", True), ("Llama-3.1-8B", False)):
        steps, loop = predict(model=model, gpu="h200"), closed_loop(model=model, gpu="h200")
        assert any(LATENT_NOTE in text and "prefill_attention of latent" in text for text in steps.warnings) == said
        assert any(LATENT_NOTE in text for text in loop.warnings) == said


def test_an_entry_of_latent_attention_goes_first_and_is_not_borrowed() -> None:
    latent = {f"{phase}_attention.bf16.mla": form("smooth_roofline") for phase in ("prefill", "decode")}
    rates = CalibratedRates(calibration_of({**latent, "decode_attention.bf16": form("smooth_roofline")}))
    parameters = build_parameters(deploy("DeepSeek-V2-Lite"), rates)
    assert {kernel.decode_rate.calibrated_by for kernel in parameters.attention} == {"decode_attention.bf16.mla"}
    assert {kernel.prefill_rate.calibrated_by for kernel in parameters.attention} == {"prefill_attention.bf16.mla"}
    assert rates.borrowed == []


def test_latent_attention_that_is_not_fitted_at_all_is_missing_not_borrowed() -> None:
    rates = CalibratedRates(calibration_of({"gemm": form("smooth_roofline")}))
    build_parameters(deploy("DeepSeek-V2-Lite"), rates)
    assert rates.borrowed == []
    assert {"prefill_attention.bf16", "decode_attention.bf16"} <= set(rates.missing)


def test_a_closed_loop_says_what_was_not_fitted() -> None:
    warnings = closed_loop(calibration=calibration_of({"gemm": form("smooth_roofline")})).warnings
    assert any("taken at datasheet rates: prefill_attention.bf16, decode_attention.bf16" in text for text in warnings)
    assert any("left out" in text and "elementwise" in text for text in warnings)
