"""The shipped calibrations: what stands in every file, and what predictions with them keep to."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from costmodel.building import build_parameters
from costmodel.clients import closed_loop
from costmodel.deployment import deploy
from costmodel.equations.parameters import Parameters
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import step_operators, step_times
from costmodel.equations.work import Chunk, Decodes, Work, make_work
from costmodel.hardware.calibration import OPERATORS, Calibration, FittedOperator, Residuals, read_calibration
from costmodel.hardware.catalog import gpu_names
from costmodel.hardware.shipped import CALIBRATIONS, ENGINES, shipped_calibration, shipped_calibrations
from costmodel.prediction import predict

PAIRS = shipped_calibrations()
MEASURED = (
    *("a100-80gb-sxm", "b200", "b300", "gb200", "gb300", "h100-sxm", "h200", "l40s", "rtx-pro-6000-blackwell-server"),
)
"""Parts whose kernels have been measured with every engine."""

every_file = pytest.mark.parametrize("pair", PAIRS, ids="-".join)


def shipped(pair: tuple[str, str]) -> Calibration:
    found = shipped_calibration(*pair)
    assert found is not None
    return found


def fitted_numbers(calibration: Calibration) -> Iterator[tuple[str, str, float]]:
    """Yield operator, parameter and value of everything fitted."""
    for key, operator in calibration.operators.items():
        for name, parameter in operator.parameters.items():
            yield key, name, parameter.value


def stated_residuals(operator: FittedOperator) -> list[Residuals]:
    return [*filter(None, [operator.residuals]), *(regime.residuals for regime in operator.regimes)]


def test_which_are_shipped() -> None:
    assert set(PAIRS) == {*itertools.product(MEASURED, ENGINES), ("rtx-4090", "vllm")}
    assert list(PAIRS) == sorted(PAIRS)
    assert shipped_calibration("v100") is None
    assert shipped_calibration("rtx-4090", "sglang") is None


# --- what stands in a file ----------------------------------------------------------------------------------------------


@every_file
def test_the_name_of_the_file_is_what_it_holds(pair: tuple[str, str]) -> None:
    calibration = read_calibration(CALIBRATIONS / f"{'-'.join(pair)}.toml")
    assert (calibration.gpu, calibration.engine) == pair
    assert pair[0] in gpu_names()
    assert pair[1] in ENGINES
    assert calibration.name.startswith(" ".join(pair))
    assert calibration.assumed_from is None


@every_file
def test_it_says_where_it_comes_from_and_how_to_make_it_again(pair: tuple[str, str]) -> None:
    calibration = shipped(pair)
    provenance = calibration.provenance
    assert provenance.command.startswith("costmodel fit --dataset ")
    assert f"--engine {pair[1]} " in provenance.command
    assert f"--gpu {pair[0]} " in provenance.command or "--dataset rtx4090 " in provenance.command
    assert "measured with" in provenance.data
    assert "llm-costmodel" in provenance.versions
    assert "aiconfigurator-core" in provenance.versions or len(provenance.files) >= 4
    assert provenance.rows > 1000
    assert datetime.date.fromisoformat(provenance.date) >= datetime.date(2025, 1, 1)
    assert any("mixed steps" in note for note in calibration.notes)


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_whose_errors_the_notes_name(pair: tuple[str, str]) -> None:
    """Errors are said to be of this part only where no other part's rows are among them."""
    calibration = shipped(pair)
    if not calibration.end_to_end:
        return
    (note,) = (note for note in calibration.notes if "errors were measured" in note)
    others = [shipped((gpu, pair[1])) for gpu in MEASURED if gpu != pair[0]]
    if any(other.end_to_end == calibration.end_to_end for other in others):
        assert not note.endswith("measured on this part")


@every_file
def test_fitted_numbers_are_physical(pair: tuple[str, str]) -> None:
    for key, name, value in fitted_numbers(shipped(pair)):
        assert value >= 0, (key, name)
        if name.endswith("efficiency"):
            assert 0 < value <= 1, (key, name)
        if name in ("launch_s", "latency_s", "latency_per_log2_s"):
            assert value < 1e-4, (key, name)  # launches and hops take microseconds


@every_file
def test_all_reduces_are_determined_by_their_data(pair: tuple[str, str]) -> None:
    if (fitted := shipped(pair).operators.get("all_reduce")) is None:
        return
    for name, parameter in fitted.parameters.items():
        assert parameter.standard_error is not None, name
        if name.endswith("efficiency"):
            assert parameter.value > 0.1, name
        if name.endswith("_s"):
            assert parameter.value < 1e-4, name


@pytest.mark.parametrize(("gpus", "measured"), [(2, 891.9e-6), (4, 6676.2e-6), (8, 15805.9e-6)])
def test_all_reduces_over_pcie_take_what_was_measured(gpus: int, measured: float) -> None:
    # 16 MiB on L40S in a CUDA graph: the table of vLLM 0.22.0 in aiconfigurator-core 0.12.0.
    rates = CalibratedRates(shipped(("l40s", "vllm")))
    transfer = rates.transfer("all_reduce", "all_reduce", 1, 2 * (gpus - 1) / gpus * 2**24, 32e9, gpus)
    (found,) = step_operators(Parameters((), (), (), (transfer,)), Work(1, 1, 1, 0, {}, {}, {}))
    assert found.seconds == pytest.approx(measured, rel=0.15)


@every_file
def test_residuals_are_intervals_of_one_level(pair: tuple[str, str]) -> None:
    calibration = shipped(pair)
    operators = calibration.operators.values()
    stated = [item for operator in operators for item in stated_residuals(operator)]
    assert {item.level for item in (*stated, *calibration.end_to_end.values())} == {0.8}
    assert all(-1 < item.low < item.high for item in (*stated, *calibration.end_to_end.values()))
    assert all(item.low < 0 < item.high for item in calibration.end_to_end.values())
    for operator in operators:
        edges = [regime.up_to for regime in operator.regimes]
        assert edges == sorted(set(edges))


@every_file
def test_kernels_and_overheads_are_all_there(pair: tuple[str, str]) -> None:
    calibration = shipped(pair)
    kinds = {key.partition(".")[0] for key in calibration.operators}
    assert {"gemm", "prefill_attention", "decode_attention", "elementwise", "overhead"} <= kinds
    for key, operator in calibration.operators.items():
        kernel = key.partition(".")[0] in (
            "gemm",
            "lm_head",
            "experts",
            "prefill_attention",
            "decode_attention",
            "all_reduce",
        )
        assert (operator.residuals is not None) == (kernel or (key == "elementwise" and pair[0] == "rtx-4090")), key
        assert kernel or key in OPERATORS, key


@pytest.mark.parametrize("engine", ENGINES)
def test_overheads_are_of_the_engine_whatever_the_part(engine: str) -> None:
    def overheads(gpu: str) -> dict[str, FittedOperator]:
        names = ("launches", "elementwise", "overhead.graph", "overhead.eager", "request")
        return {name: shipped((gpu, engine)).operators[name] for name in names}

    assert all(overheads(gpu) == overheads(MEASURED[0]) for gpu in MEASURED)


# --- predictions with it ------------------------------------------------------------------------------------------------


@every_file
@pytest.mark.parametrize("model", ["Llama-3.1-8B", "Qwen3-32B", "gpt-oss-120b"])
def test_no_step_is_faster_than_the_datasheet(pair: tuple[str, str], model: str) -> None:
    gpu, engine = pair
    prediction = predict(gpu=gpu, engine=engine, model=model)
    assert (prediction.headline, prediction.calibration) == ("calibrated", shipped(pair).name)
    calibrated, roofline = prediction.rungs.calibrated, prediction.rungs.roofline
    assert calibrated is not None
    for name in ("decode_step_s", "prefill_s", "spike_s"):
        point, floor = getattr(calibrated, name), getattr(roofline, name)
        assert floor < point < 6 * floor, name
        if prediction.intervals is not None:
            low, high = getattr(prediction.intervals, name)
            assert floor <= low <= point < high, name
    assert not any("left out" in warning for warning in prediction.warnings)
    if pair != ("rtx-4090", "vllm"):
        assert prediction.intervals is not None
        assert prediction.intervals.level == 0.8


@pytest.mark.parametrize(
    ("what", "low", "high"),
    [("prefill_s", 0.179, 0.205), ("decode_step_s", 0.0074, 0.0095)],
)
def test_llama_on_an_h100(what: str, low: float, high: float) -> None:
    """8,000 tokens at 40 to 45 thousand per second, and 32 streams at context 500, as vLLM takes them."""
    rung = predict(8000, "h100", "Llama-3.1-8B", streams=32, context=500).rungs.calibrated
    assert rung is not None
    assert low <= getattr(rung, what) <= high


STREAMS = (1, 2, 3, 8, 9, 32, 100, 128, 500, 512, 777, 1024, 2048, 4096)


@every_file
@pytest.mark.parametrize(
    ("model", "context"), [("Qwen2.5-7B", 64), ("Qwen2.5-7B", 0), ("Llama-3.1-70B", 5000), ("gpt-oss-120b", 500)]
)
def test_a_token_of_a_prompt_beside_them_never_shortens_a_decode_step(
    pair: tuple[str, str], model: str, context: int
) -> None:
    deployment = deploy(model, pair[0], tp=1 if model == "Qwen2.5-7B" else 4)
    parameters = build_parameters(deployment, CalibratedRates(shipped(pair)))
    decodes = [Decodes(np.array(STREAMS, dtype=float), float(context))]
    alone, beside = (
        step_times(parameters, make_work(chunks, decodes, parameters.windows)) for chunks in ([], [Chunk(1.0)])
    )
    without_attention = beside.total - beside.attention >= alone.total - alone.attention
    assert np.all(without_attention), STREAMS
    # FlashAttention-2 serves a mixed step by one kernel, measured on the RTX 4090 to be quicker than the kernels that decode needs.
    if pair != ("rtx-4090", "vllm"):
        assert np.all(beside.total >= alone.total), STREAMS


@pytest.mark.parametrize("engine", ENGINES)
def test_many_streams_wait_no_less_for_a_prompt_than_for_each_other(engine: str) -> None:
    rung = predict(64, "h200", "Qwen2.5-7B", engine=engine, streams=512).rungs.calibrated
    assert rung is not None
    assert rung.spike_ratio > 1


@pytest.mark.parametrize("engine", ENGINES)
def test_closed_loops_have_intervals_where_they_were_measured(engine: str) -> None:
    loop = closed_loop(gpu="h200", engine=engine)
    assert loop.intervals is not None
    for name in ("ttft_s", "tpot_s"):
        low, high = loop.intervals[name]
        assert 0 < low < getattr(loop, name) < high
