"""Efficiencies assumed from the nearest relative: which relative, what is carried over, and that the answer says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodel.calibrations import assumed_calibration, nearest_relative
from costmodel.clients import closed_loop
from costmodel.hardware.calibration import Calibration
from costmodel.hardware.catalog import load_gpu
from costmodel.hardware.errors import InputError
from costmodel.hardware.shipped import ENGINES, shipped_calibration
from costmodel.prediction import predict
from tests.cli.runner import document, printed, run
from tests.model.samples import CALIBRATION

MEASURED = ("a100-80gb-sxm", "l40s", "rtx-4090", "h100-sxm", "h200", "b200", "rtx-pro-6000-blackwell-server")


@pytest.mark.parametrize(
    ("gpu", "relative"),
    [
        ("a100-80gb-pcie", "a100-80gb-sxm"),
        ("rtx-3090", "a100-80gb-sxm"),
        ("rtx-a6000", "a100-80gb-sxm"),
        ("h100-pcie", "h100-sxm"),
        ("h100-nvl", "h100-sxm"),
        ("gh200-144gb", "h200"),
        ("rtx-6000-ada", "l40s"),  # the same matrix units; an RTX 4090 has half of them
        ("rtx-4080", "rtx-4090"),
        ("rtx-5090", "rtx-pro-6000-blackwell-server"),
        ("gb200", "b200"),
        ("v100", "a100-80gb-sxm"),  # no measured part of its generation: the next one
        ("mi300x", None),
    ],
)
def test_the_relative_is_of_the_nearest_generation_then_of_the_nearest_rates(gpu: str, relative: str | None) -> None:
    assert nearest_relative(load_gpu(gpu)[0], MEASURED) == relative


def test_assumed_factors_are_the_relatives_without_their_residuals() -> None:
    assert CALIBRATION.gpu == "h100-sxm"

    def lookup(gpu: str) -> Calibration | None:
        return CALIBRATION if gpu == "h100-sxm" else None

    assumed = assumed_calibration(load_gpu("h100-pcie")[0], "h100-pcie", lookup)
    assert (assumed.gpu, assumed.assumed_from) == ("h100-pcie", "h100-sxm")
    assert assumed.operators["gemm"].parameters == CALIBRATION.operators["gemm"].parameters
    assert all(operator.residuals is None for operator in assumed.operators.values())
    assert assumed_calibration(load_gpu("h100-sxm")[0], "h100-sxm", lookup) is CALIBRATION


@pytest.mark.parametrize("engine", ENGINES)
def test_predict_says_what_it_assumed_and_gives_no_interval(engine: str) -> None:
    relative = shipped_calibration("h100-sxm", engine)
    assert relative is not None
    found = predict(gpu="h100-pcie", engine=engine, assume_efficiency=True)
    assert found.headline == "calibrated"
    assert found.calibration == f"assumed from {relative.name}"
    assert found.intervals is None
    assert any("nothing was measured on this part" in warning for warning in found.warnings)
    assert found.rungs.calibrated is not None
    assert found.rungs.calibrated.decode_step_s > found.rungs.roofline.decode_step_s
    assert predict(gpu="h100-pcie", engine=engine).headline == "roofline"


def test_a_part_with_a_calibration_assumes_nothing() -> None:
    assert predict(assume_efficiency=True) == predict()


def test_the_nearest_relative_is_one_with_a_calibration_for_the_engine() -> None:
    # An RTX 4090 is calibrated for vLLM alone: an RTX 4080 takes it there, and an L40S's for SGLang.
    for engine, relative in (("vllm", "rtx-4090"), ("sglang", "l40s")):
        shipped = shipped_calibration(relative, engine)
        assert shipped is not None
        found = predict(model="Llama-3.2-1B", gpu="rtx-4080", engine=engine, assume_efficiency=True)
        assert found.calibration == f"assumed from {shipped.name}"


def test_a_part_without_a_relative_stays_on_the_roofline_and_says_so() -> None:
    found = predict(gpu="mi300x", assume_efficiency=True)
    assert (found.headline, found.calibration) == ("roofline", None)
    assert any("nor on a relative whose efficiencies could be assumed" in warning for warning in found.warnings)
    with pytest.raises(InputError, match="no amd part with a calibration"):
        assumed_calibration(load_gpu("mi300x")[0], "mi300x")


@pytest.mark.parametrize("given", ["none", CALIBRATION])
def test_a_calibration_that_is_given_and_one_that_is_assumed_do_not_go_together(given: str | Calibration) -> None:
    with pytest.raises(InputError, match="--calibration and --assume-efficiency do not go together"):
        predict(calibration=given, assume_efficiency=True)


FLOOR = "no calibration in use: the roofline rung is a floor, measured steps take longer"
RATES = "no calibration in use: every step is at datasheet rates, measured ones take longer"
"""Of a closed loop, whose mean times are no floor."""


@pytest.mark.parametrize(
    ("options", "rest"),
    [
        ({"calibration": "none"}, " (calibration none, as asked)"),
        (
            {"gpu": "rtx-4090", "engine": "trtllm"},
            "; nothing was measured on this part with trtllm, but there is a calibration for vllm (--engine vllm)",
        ),
        (
            {"gpu": "rtx-pro-6000"},
            "; nothing was measured on this part with vllm; of the parts that the name may mean these have a calibration: "
            "NVIDIA RTX PRO 6000 Blackwell Server Edition 96GB (--gpu rtx-pro-6000-blackwell-server)",
        ),
        (
            {"gpu": "rtx-3090"},
            "; nothing was measured on this part with vllm; --assume-efficiency takes the efficiencies of NVIDIA A100 SXM4 80GB",
        ),
        (
            {"gpu": "mi300x"},
            "; nothing was measured on this part with vllm, nor on a relative whose efficiencies could be assumed",
        ),
    ],
)
def test_no_calibration_has_a_reason_and_a_way_out(options: dict[str, str], rest: str) -> None:
    assert FLOOR + rest in predict(model="Llama-3.2-1B", **options).warnings
    # A closed loop cannot assume.
    said = RATES + (rest if "assume" not in rest or options["gpu"] == "mi300x" else rest.partition("; --assume")[0])
    assert said in closed_loop(2, model="Llama-3.2-1B", **options).warnings


def test_what_was_not_measured_is_said_by_engine() -> None:
    # The RTX 4090 was measured, with vLLM.
    found = predict(gpu="rtx-4090", engine="trtllm", assume_efficiency=True)
    assert any("nothing was measured on this part with trtllm" in warning for warning in found.warnings)


def test_a_comparison_has_the_roofline_where_nothing_can_be_assumed() -> None:
    found = document("predict --gpu l4,mi300x --assume-efficiency --json")["predictions"]
    assert [item["headline"] for item in found] == ["calibrated", "roofline"]
    assert "warning: mi300x: no calibration in use" in printed("predict --gpu l4,mi300x --assume-efficiency")


def test_the_command_has_it_too(tmp_path: Path) -> None:
    assert document("predict --gpu h100-pcie --assume-efficiency --json")["headline"] == "calibrated"
    assert "nothing was measured on this part" in printed("predict --gpu h100-pcie --assume-efficiency")
    drawn = run(f"predict --gpu h100-pcie --assume-efficiency --figure heights --plot {tmp_path / 'heights.svg'}")
    assert drawn.exit_code == 0
    # The figure's title has the height that the prediction has; on the roofline it would be lower.
    assert (
        f"{predict(gpu='h100-pcie', assume_efficiency=True).spike.height_s * 1e3:.0f} ms"
        in (tmp_path / "heights.svg").read_text()
    )


def test_a_calibration_may_name_its_part_by_an_alias() -> None:
    """``h100`` is the SXM part, as on the command line."""
    for alias in ("h100", "H100 SXM", "NVIDIA H100 80GB HBM3"):
        named = CALIBRATION.model_copy(update={"gpu": alias})
        assert predict(calibration=named) == predict(calibration=CALIBRATION)
    with pytest.raises(InputError, match="is for h100-sxm, but the GPU is a100-80gb-sxm; use --gpu h100-sxm"):
        predict(gpu="a100", calibration=CALIBRATION.model_copy(update={"gpu": "h100"}))
    with pytest.raises(InputError, match="is not for h100-sxm: unknown GPU 'h10O'; did you mean h100"):
        predict(calibration=CALIBRATION.model_copy(update={"gpu": "h10O"}))


def test_a_calibration_of_another_engine_is_said() -> None:
    sglang = shipped_calibration("h100-sxm", "sglang")
    assert sglang is not None
    said = f"calibration {sglang.name}: fitted to sglang, not to vllm; so is this answer"
    assert said in predict(calibration=sglang).notes
    for found in (predict(engine="sglang"), predict(engine="sglang", calibration=sglang), predict()):
        assert not any("so is this answer" in note for note in found.notes)
