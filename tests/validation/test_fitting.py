"""Fits recover what is known, say what the data cannot tell, and reach on silicon what they claim."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from costmodel.errors import InputError
from costmodel.hardware.calibration import read_calibration
from costmodel.prediction import predict
from costmodel.validation.fitting.holdout import FEWEST, coverage, errors_by_size, errors_of, folds, held_out, widened
from costmodel.validation.fitting.kernels import useless
from costmodel.validation.fitting.least_squares import Array, Evaluator, fit_kernel
from costmodel.validation.fitting.models import (
    KernelModel,
    all_reduce_model,
    decode_model,
    elementwise_model,
    gemm_model,
    mixed_model,
    prefill_model,
    without,
)

F, W, SM, LINK = 989e12, 3.35e12, 132.0, 450e9
GENERATOR = np.random.default_rng(7)
ROWS = 800


def powers(low: int, high: int) -> Array:
    """Return random sizes, even on a logarithmic scale."""
    return np.round(np.exp2(GENERATOR.uniform(np.log2(low), np.log2(high), ROWS)))


MATRICES = {"tokens": powers(1, 32768), "inputs": powers(256, 16384), "outputs": powers(256, 32768)}
HEADS = {"heads": powers(8, 64), "kv_heads": powers(1, 8), "head_dim": np.full(ROWS, 128.0)}
PROMPTS = {**HEADS, "batch": powers(1, 8), "tokens": powers(64, 16384), "cached": np.zeros(ROWS)}
READS = {**HEADS, "batch": powers(1, 256), "read": powers(16, 65536)}
MESSAGES = {"gpus": GENERATOR.choice([2.0, 4.0, 8.0], ROWS), "message": powers(1024, 2**27)}

Case = tuple[Callable[[tuple[str, ...]], KernelModel], dict[str, Array], dict[str, float]]
CASES: dict[str, Case] = {
    "gemm_split": (
        lambda free: gemm_model("gemm.bf16", "gemm_split", free, F, W, 2.0),
        MATRICES,
        {"compute_efficiency": 0.83, "bandwidth_efficiency": 0.88, "launch_s": 2.6e-6, "sharpness": 3.3, "ramp_inputs": 150.0},
    ),
    "gemm_quant": (
        lambda free: gemm_model("gemm.fp8", "gemm_quant", free, 2 * F, W, 1.0),
        MATRICES,
        {"compute_efficiency": 0.62, "bandwidth_efficiency": 0.87, "launch_s": 5.6e-6, "sharpness": 2.0,
         "quantise_efficiency": 0.37, "depth_s": 6.8e-10},
    ),
    "prefill_tile": (
        lambda free: prefill_model("prefill_attention.bf16", "prefill_tile", free, F, W, SM, 2.0),
        PROMPTS,
        {"compute_efficiency": 0.7, "bandwidth_efficiency": 0.5, "launch_s": 1.2e-5, "sharpness": 2.0, "tile_rows": 90.0,
         "shared_passes": 1.6},
    ),
    "decode_split": (
        lambda free: decode_model("decode_attention.bf16", "decode_split", free, F, W, 2.0),
        READS,
        {"bandwidth_efficiency": 0.9, "launch_s": 1.1e-5, "padding_tokens": 150.0, "saturation_s": 8e-6, "saturation_tokens": 3000.0},
    ),
    "gemm_split with a last wave": (
        lambda free: gemm_model("gemm.bf16", "gemm_split", free, F, W, 2.0),
        MATRICES,
        {"compute_efficiency": 0.9, "bandwidth_efficiency": 0.75, "launch_s": 3.2e-6, "sharpness": 2.6, "ramp_inputs": 80.0,
         "wave_s": 2e-5},
    ),
    "gemm_quant_tiled": (
        lambda free: gemm_model("gemm.fp8", "gemm_quant_tiled", free, 2 * F, W, 1.0),
        MATRICES,
        {"compute_efficiency": 0.58, "bandwidth_efficiency": 0.83, "launch_s": 6.6e-6, "quantise_efficiency": 0.43, "depth_s": 2.6e-9},
    ),
    "gemm_tiles": (
        lambda free: gemm_model("gemm.bf16", "gemm_tiles", free, 165.2e12, 1.008e12, 2.0),
        MATRICES,
        {"compute_efficiency": 0.95, "bandwidth_efficiency": 0.9, "launch_s": 5.5e-6, "sharpness": 8.0, "slowdown": 0.1},
    ),
    "prefill_tile in a window": (
        lambda free: prefill_model("prefill_attention.bf16.d128.w128", "prefill_tile", free, F, W, SM, 2.0, 128),
        PROMPTS,
        {"compute_efficiency": 0.4, "bandwidth_efficiency": 0.5, "launch_s": 1.2e-5, "sharpness": 2.0, "tile_rows": 90.0,
         "kv_passes": 1.6},
    ),
    "decode_split with hidden padding": (
        lambda free: decode_model("decode_attention.bf16", "decode_split", free, F, W, 2.0),
        READS,
        {"bandwidth_efficiency": 0.9, "launch_s": 1.1e-5, "padding_tokens": 150.0, "saturation_s": 8e-6, "saturation_tokens": 3000.0,
         "sharpness": 2.0},
    ),
    "decode_split in a window": (
        lambda free: decode_model("decode_attention.kv-fp8.d64.w128", "decode_split", free, F, W, 1.0),
        {**READS, "read": np.full(ROWS, 128.0)},
        {"bandwidth_efficiency": 0.3, "launch_s": 1e-5, "wave_s": 3e-6},
    ),
    "decode_blocks": (
        lambda free: decode_model("decode_attention.bf16", "decode_blocks", free, F, W, 2.0),
        {**READS, "heads": READS["kv_heads"] * GENERATOR.choice([1.0, 4.0], ROWS)},
        {"bandwidth_efficiency": 0.8, "launch_s": 1.2e-5, "padding_tokens": 110.0, "extra_launch_s": 5.8e-6, "key_s": 2.3e-8},
    ),
    "link_switch with another library": (
        lambda free: all_reduce_model("link_switch", free, LINK),
        MESSAGES,
        {"latency_s": 4e-6, "latency_per_log2_s": 4e-7, "bandwidth_efficiency": 0.64, "two_shot_s": 9e-6, "large_s": 2e-5,
         "one_shot_efficiency": 0.3},
    ),
    "mixed_tiles": (
        lambda free: mixed_model("prefill_attention.bf16", free, 165.2e12, 1.008e12, 128.0, 2.0, (32, 8, 128)),
        {"tokens": powers(16, 2048), "cached": powers(16, 8192), "decodes": powers(1, 128), "context": powers(16, 4096)},
        {"compute_efficiency": 0.8, "launch_s": 8e-6, "tile_s": 4.5e-6, "empty_tile_s": 4e-7},
    ),
    "elementwise": (
        lambda free: elementwise_model(free, 1.008e12, 4096),
        {"tokens": powers(1, 2048)},
        {"passes": 18.0, "launch_s": 9.5e-6, "cached_bytes": 4e6},
    ),
    "link_switch": (
        lambda free: all_reduce_model("link_switch", free, LINK),
        MESSAGES,
        {"latency_s": 4e-6, "latency_per_log2_s": 4e-7, "bandwidth_efficiency": 0.64, "two_shot_s": 3.7e-6},
    ),
    "link_ring": (
        lambda free: all_reduce_model("link_ring", free, LINK),
        MESSAGES,
        {"latency_s": 2e-6, "latency_per_hop_s": 1.6e-6, "bandwidth_efficiency": 0.6, "sharing": 0.2, "sharing_power": 1.2,
         "small_sharing": 0.4, "protocol_s": 3e-5},
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", CASES)
def test_known_parameters_are_recovered(form: str) -> None:
    build, data, truth = CASES[form]
    evaluator = Evaluator(build(tuple(truth)))
    exact = evaluator.seconds(truth, data)
    clean = fit_kernel(evaluator, data, exact)
    assert clean.values == pytest.approx(truth, rel=1e-4)
    noisy = fit_kernel(evaluator, data, exact * np.exp(np.random.default_rng(1).normal(0, 0.02, ROWS)))
    for name, value in truth.items():
        assert abs(noisy.values[name] - value) < 4.5 * noisy.standard_errors[name] + 1e-12
        assert noisy.standard_errors[name] < 0.5 * value
    assert noisy.at_bound == ()


@pytest.mark.parametrize("form", CASES)
def test_the_jacobian_is_exact(form: str) -> None:
    build, data, truth = CASES[form]
    evaluator = Evaluator(build(tuple(truth)))
    slopes = evaluator.jacobian(truth, data)
    for column, name in enumerate(truth):
        step = truth[name] * 1e-6
        above = evaluator.seconds({**truth, name: truth[name] + step}, data)
        below = evaluator.seconds({**truth, name: truth[name] - step}, data)
        scale = evaluator.seconds(truth, data) / truth[name]
        assert np.max(np.abs((above - below) / (2 * step) - slopes[:, column]) / scale) < 1e-5


def test_a_model_without_a_parameter_is_that_of_zero() -> None:
    build, data, truth = CASES["gemm_split with a last wave"]
    whole = build(tuple(truth))
    part = without(whole, {"wave_s"})
    assert part.parameters == tuple(name for name in truth if name != "wave_s")
    values = {name: value for name, value in truth.items() if name != "wave_s"}
    expected = Evaluator(whole).seconds({**truth, "wave_s": 0.0}, data)
    assert Evaluator(part).seconds(values, data) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("form", CASES)
def test_fits_are_what_a_deployment_takes(form: str) -> None:
    # The same operator as a number, not as a formula compiled for arrays: first row of the data.
    build, data, truth = CASES[form]
    model = build(tuple(truth))
    row = {name: float(column[0]) for name, column in data.items()}
    found = float(model.expression.subs({item: (truth | row)[str(item)] for item in model.expression.free_symbols}))
    assert found == pytest.approx(float(Evaluator(model).seconds(truth, data)[0]), rel=1e-9)


def test_a_second_protocol_is_dropped_where_the_messages_tell_none() -> None:
    build, data, truth = CASES["link_ring"]
    one = {**truth, "small_sharing": 0.0, "protocol_s": 0.0}
    evaluator = Evaluator(build(tuple(truth)))
    noise = np.exp(np.random.default_rng(3).normal(0, 0.02, ROWS))
    gone = useless(fit_kernel(evaluator, data, evaluator.seconds(one, data) * noise))
    assert gone == {"small_sharing", "protocol_s"}
    assert useless(fit_kernel(evaluator, data, evaluator.seconds(truth, data) * noise)) == set()
    left = fit_kernel(Evaluator(without(evaluator.model, gone)), data, evaluator.seconds(one, data))
    assert left.values == pytest.approx({name: value for name, value in truth.items() if name not in gone}, rel=1e-4)


def test_what_the_data_do_not_determine_is_said() -> None:
    # Large prompts only: compute binds everywhere with a sharp corner, so nothing depends on bandwidth.
    free = ("compute_efficiency", "bandwidth_efficiency")
    evaluator = Evaluator(gemm_model("gemm.bf16", "smooth_roofline", free, F, W, 2.0))
    data = {
        **MATRICES,
        "tokens": np.full(ROWS, 16384.0),
        "inputs": np.full(ROWS, 8192.0),
        "outputs": powers(4096, 32768),
    }
    found = fit_kernel(
        evaluator, data, evaluator.seconds({"compute_efficiency": 0.8, "bandwidth_efficiency": 0.9}, data)
    )
    assert found.undetermined == ("bandwidth_efficiency",)
    assert "bandwidth_efficiency" not in found.standard_errors
    assert found.values["compute_efficiency"] == pytest.approx(0.8)


def test_parameters_that_cannot_be_told_apart_are_named() -> None:
    # One message size and one number of GPUs: latency and bandwidth only appear in one sum.
    data = {"gpus": np.full(ROWS, 2.0), "message": np.full(ROWS, 1e6) * (1 + 1e-3 * GENERATOR.uniform(size=ROWS))}
    free = ("latency_s", "bandwidth_efficiency")
    evaluator = Evaluator(all_reduce_model("link_switch", free, LINK))
    seconds = evaluator.seconds({"latency_s": 4e-6, "bandwidth_efficiency": 0.6}, data)
    found = fit_kernel(evaluator, data, seconds * np.exp(GENERATOR.normal(0, 1e-3, ROWS)))
    assert found.indistinct == (("bandwidth_efficiency", "latency_s"),)


def test_a_fit_below_the_floor_is_refused() -> None:
    build, data, truth = CASES["gemm_split"]
    evaluator = Evaluator(build(tuple(truth)))
    assert np.all(evaluator.seconds(truth, data) >= evaluator.floor(data))
    # No fit can get there with efficiencies in (0, 1]; a model that promises a higher floor shows that it would be refused.
    strict = Evaluator(replace(evaluator.model, floor=evaluator.model.floor * 100))
    with pytest.raises(InputError, match="below the physical floor in"):
        fit_kernel(strict, data, evaluator.seconds(truth, data))


def test_data_that_cannot_be_fitted_are_refused() -> None:
    build, data, truth = CASES["gemm_split"]
    evaluator = Evaluator(build(tuple(truth)))
    few = {name: column[:3] for name, column in data.items()}
    with pytest.raises(InputError, match="3 rows cannot fit the 5 parameters"):
        fit_kernel(evaluator, few, np.ones(3))
    with pytest.raises(InputError, match="finite and above zero"):
        fit_kernel(evaluator, data, np.zeros(ROWS))
    with pytest.raises(InputError, match="no parameter 'speed'"):
        gemm_model("gemm.bf16", "gemm_split", ("speed",), F, W, 2.0)


def test_held_out_groups_are_whole() -> None:
    inputs, outputs = np.repeat([256.0, 512.0, 1024.0, 4096.0], 50), np.tile([256.0, 8192.0], 100)
    test = held_out([inputs, outputs])
    keys = list(zip(inputs.tolist(), outputs.tolist(), strict=True))
    left, kept = (
        {key for key, out in zip(keys, test, strict=True) if out},
        {key for key, out in zip(keys, test, strict=True) if not out},
    )
    assert left
    assert kept
    assert not left & kept


def test_errors_are_counted_from_the_measurement() -> None:
    errors = errors_of(np.array([1.1, 0.9, 1.0, 2.0]), np.ones(4))
    assert (errors.rows, errors.median, errors.bias) == (4, pytest.approx(0.1), pytest.approx(0.05))
    assert errors.low < 0 < errors.high


def test_errors_by_size_are_those_of_thirds() -> None:
    # Measured are 1, 2 and 3 % more than predicted in the three thirds, in any order of rows.
    order = np.random.default_rng(3).permutation(90)
    size = (np.arange(90.0) + 1)[order]
    predicted = 1e-5 * size
    measured = predicted * np.repeat([1.01, 1.02, 1.03], 30)[order]
    parts = errors_by_size(predicted, measured, size)
    assert [edge for edge, _ in parts] == pytest.approx([30 + 2 / 3, 60 + 1 / 3, 90])
    for (_, errors), more in zip(parts, (0.01, 0.02, 0.03), strict=True):
        assert (errors.rows, errors.low, errors.high) == (30, pytest.approx(more), pytest.approx(more))
        assert errors.median == pytest.approx(more / (1 + more))


def test_thirds_of_few_rows_or_of_one_size_have_no_errors_of_their_own() -> None:
    few, enough = np.arange(3.0 * FEWEST - 1) + 1, np.arange(3.0 * FEWEST) + 1
    assert errors_by_size(few, few, few) == ()
    assert len(errors_by_size(enough, enough, enough)) == 3
    # Half of the rows have the smallest size: the second third is empty.
    mostly = np.maximum(np.arange(90.0) - 70, 1)
    assert errors_by_size(np.ones(90), np.ones(90), mostly) == ()


def test_coverage_counts_rows_inside_the_intervals_of_the_other_half() -> None:
    # Both halves have the same residuals −10 … +10 % at every size, so the interval covers its level.
    residual = np.tile(np.linspace(-0.1, 0.1, 200), 2)
    half = np.arange(400) < 200
    size, measured = np.tile(np.arange(200.0) * 37 % 200, 2) + 1, 1 + residual
    assert coverage(np.ones(400), measured, size, half) == pytest.approx(0.8, abs=0.03)
    # One half errs by four times as much: 0.8/4 of its rows are inside what the other promises, and all of the other's in its own.
    wider = np.where(half, measured, 1 + 4 * residual)
    assert coverage(np.ones(400), wider, size, half) == pytest.approx((1 + 0.8 / 4) / 2, abs=0.03)


def test_rows_larger_than_any_in_the_other_half_err_like_its_largest() -> None:
    # One half: ±10 % in two thirds, then 40 to 60 %, of which the central 80 % are 42 to 58 %; over all its rows −8 to 54 %.
    first = np.concatenate([np.linspace(-0.1, 0.1, 30), np.linspace(-0.1, 0.1, 30), np.linspace(0.4, 0.6, 30)])
    # The other, all larger: 57 % in 60 rows and 0 in 30; only the former are inside.
    second = np.tile([0.57, 0.57, 0.0], 30)
    size, half = np.concatenate([np.arange(90.0), np.arange(90.0) + 1000]), np.arange(180) < 90
    # Of the first half, 15 + 15 + 25 rows are within 0 to 57 %, the second's in every third.
    inside = coverage(np.ones(180), 1 + np.concatenate([first, second]), size, half)
    assert inside == pytest.approx((60 + 55) / 180)


# --- measured silicon ---------------------------------------------------------------------------------------------------

LIMITS = {"h100": 0.05, "h200": 0.05, "b200": 0.06, "a100": 0.06}
"""Largest median error of bf16 matrices on held-out shapes that is accepted, and of attention on shapes like a server's."""


@pytest.mark.parametrize("gpu", LIMITS)
def test_kernels_of_a_gpu(gpu: str, tmp_path: Path) -> None:
    pytest.importorskip("aiconfigurator_core", reason="aiconfigurator-core is not installed (extra: silicon)")
    from costmodel.validation.fitting.calibrate import kernel_calibration, to_toml
    from costmodel.validation.fitting.kernels import fit_kernels

    fits = {fit.operator: fit for fit in fit_kernels(gpu)}
    assert fits["gemm.bf16"].errors.median <= LIMITS[gpu]
    assert fits["decode_attention.bf16"].errors.median <= 0.05
    assert fits["prefill_attention.bf16"].errors.median <= 0.053
    assert fits["all_reduce"].errors.median <= 0.05
    assert "gemm.fp8" not in fits or fits["gemm.fp8"].errors.median <= 0.09
    for name in ("gemm.bf16", "prefill_attention.bf16", "decode_attention.bf16"):
        served = fits[name].errors_served
        assert served is not None
        assert served.median <= LIMITS[gpu]
    assert all(len(fit.result.values) <= 6 for fit in fits.values())
    calibration = kernel_calibration(gpu, "vllm", list(fits.values()), "pytest")
    path = tmp_path / "calibration.toml"
    path.write_text(to_toml(calibration), encoding="utf-8")
    assert read_calibration(path) == calibration
    answer = predict(gpu=gpu, calibration=path)
    assert answer.rungs.calibrated is not None
    assert answer.rungs.calibrated.spike_s > answer.rungs.roofline.spike_s
    assert any("left out" in text for text in answer.warnings)
    assert kernel_calibration(gpu, "vllm", list(fit_kernels(gpu)), "pytest") == calibration


def test_folds_keep_groups_together_and_are_of_one_size() -> None:
    messages = np.repeat(np.arange(20.0), 3)
    fold = folds([messages], seed=1)
    assert [len({*fold[messages == message]}) for message in range(20)] == [1] * 20
    assert np.bincount(fold).tolist() == [12] * 5


def test_an_interval_is_no_narrower_than_that_of_any_kind_of_rows() -> None:
    kinds = np.repeat([2.0, 4.0, 8.0], 30)
    predicted = np.ones(90)
    measured = 1 + np.linspace(-0.01, 0.01, 90)
    measured[kinds == 8] = 1 + np.linspace(0.2, 0.3, 30)
    found = widened(errors_of(predicted, measured), predicted, measured, kinds)
    assert found.high == pytest.approx(0.29)
    assert found.low == pytest.approx(errors_of(predicted[:30], measured[:30]).low)
    assert found.median == errors_of(predicted, measured).median
