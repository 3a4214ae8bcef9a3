"""``costmodel gpus``: list, show and check, with parts of the user's own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import costmodel
from costmodel.hardware.catalog import FOLDER, gpu_names, load_gpu
from tests.cli.runner import document, printed, refusal
from tests.cli.samples import CALIBRATION, GPU_PROFILE


def test_the_list_has_every_part() -> None:
    text = printed("gpus list")
    header, _, *rows = (re.split(r" {2,}", line.strip()) for line in text.partition("\n\n")[0].splitlines())
    assert header == ["name", "part", "16-bit", "fp8", "int8", "fp4", "TB/s", "GB", "link GB/s"]
    assert [row[0] for row in rows] == list(gpu_names())
    for name, part, *peaks, bandwidth, memory, link in rows:
        profile, _ = load_gpu(name)
        assert part == profile.name.removeprefix("NVIDIA ").partition(" (")[0]
        known = {str(dtype): figure for dtype, figure in profile.peak_flops.items()}
        figures = [known.get("bf16", known.get("fp16")), *(known.get(dtype) for dtype in ("fp8", "int8", "fp4"))]
        for cell, figure in zip(peaks, figures, strict=True):
            assert cell == ("–" if figure is None else f"{round(figure.value / 1e12, 1):,g}")
        assert float(bandwidth) == pytest.approx(profile.memory_bandwidth.value / 1e12, rel=1e-3)
        assert memory == f"{profile.memory_nominal.value / 1e9:g}"
        assert link == f"{profile.link.bandwidth_per_direction.value / 1e9:g} {profile.link.kind}"
    assert "Peaks are dense, in TFLOP/s (16-bit: bf16, or fp16 where there is no bf16)" in text
    assert "link bandwidth is per direction" in text


def test_parts_of_the_list_are_told_apart() -> None:
    """Without brackets and vendor the parts still have names of their own."""
    rows = [re.split(r" {2,}", line.strip()) for line in printed("gpus list").partition("\n\n")[0].splitlines()[2:]]
    assert len({row[1] for row in rows}) == len(rows)
    by_name = {row[0]: row[2:6] for row in rows}
    assert by_name["t4"] == ["65", "–", "130", "–"]
    assert by_name["h100-sxm"] == ["989", "1,979", "1,979", "–"]


def test_the_list_as_a_document() -> None:
    found = document("gpus list --json")
    assert found["schema"] == "costmodel.gpus/1"
    assert [item["profile"] for item in found["gpus"]] == list(costmodel.gpu_names())
    by_name = {item["profile"]: item for item in found["gpus"]}
    h100, _ = costmodel.load_gpu("h100-sxm")
    assert by_name["h100-sxm"]["peak_flops"]["bf16"] == h100.peak_flops["bf16"].value == 989e12
    assert by_name["h100-sxm"]["memory_bandwidth"] == 3.35e12
    assert by_name["t4"]["peak_flops"].get("bf16") is None


@pytest.mark.parametrize(
    "name", ["h100", "H100-SXM5-80GB", "a100-80gb", "rtx4090", "NVIDIA H100 80GB HBM3", "mi300x", "t4"]
)
def test_a_part_is_shown_with_the_source_of_every_number(name: str) -> None:
    profile, choice = load_gpu(name)
    text = printed(["gpus", "show", name])
    assert text.startswith(f"{profile.name} ({choice.name}): {profile.architecture}\n")
    assert (f"note: {choice.note}" in text) == bool(choice.note)
    for field, figure in profile.figures().items():
        [line] = [line for line in text.splitlines() if line.strip().startswith(f"{field} ")]
        assert f"[{figure.source}]" in line
    for key, source in profile.sources.items():
        assert f"[{key}] {source.title}: {source.url}" in text


def test_every_part_is_shown() -> None:
    for name in gpu_names():
        assert load_gpu(name)[0].name in printed(f"gpus show {name}")


def test_a_part_as_a_document() -> None:
    profile, _ = costmodel.load_gpu("l4")
    found = document("gpus show l4 --json")
    assert found == json.loads(profile.model_dump_json(by_alias=True))
    assert found["schema"] == "costmodel.gpu/1"


def test_the_names_that_are_understood_are_shown() -> None:
    text = printed("gpus show h100-sxm")
    assert "also called " in text
    [line] = [line for line in text.splitlines() if line.startswith("also called ")]
    for name in line.removeprefix("also called ").split(", "):
        assert load_gpu(name)[1].name == "h100-sxm"


def test_a_part_of_ones_own(own_folder: Path) -> None:
    (own_folder / "mine.toml").write_text(GPU_PROFILE, encoding="utf-8")
    assert printed("gpus check mine.toml") == "mine.toml: profile of Home-made 24GB is valid\n"
    assert printed("gpus show mine.toml").startswith("Home-made 24GB (mine): own\n")
    found = document("predict --gpu mine.toml --model Llama-3.2-1B --json")
    assert found["gpu"] == {"name": "Home-made 24GB", "profile": "mine", "count": 1}
    assert "profile read from mine.toml" in found["notes"]
    decode = found["rungs"]["textbook"]["decode_step_s"]
    assert decode == pytest.approx(found["model"]["weights_bytes"] / 1e12)


def test_a_part_that_was_changed_is_read_again(own_folder: Path) -> None:
    path = own_folder / "mine.toml"
    path.write_text(GPU_PROFILE, encoding="utf-8")
    before = costmodel.predict(gpu=str(path)).rungs.textbook.decode_step_s
    path.write_text(GPU_PROFILE.replace("value = 1e12", "value = 2e12"), encoding="utf-8")
    assert costmodel.predict(gpu=str(path)).rungs.textbook.decode_step_s == pytest.approx(before / 2)


def test_a_part_of_ones_own_may_be_calibrated(own_folder: Path) -> None:
    (own_folder / "mine.toml").write_text(GPU_PROFILE, encoding="utf-8")
    for name in ("mine", "Home-made 24GB"):
        (own_folder / "fits.toml").write_text(CALIBRATION.replace("h100-sxm", name), encoding="utf-8")
        found = document("predict --gpu mine.toml --model Llama-3.2-1B --calibration fits.toml --json")
        assert found["headline"] == "calibrated"


def test_a_part_in_a_folder_with_a_comma(own_folder: Path) -> None:
    folder = own_folder / "mine, yours"
    folder.mkdir()
    (folder / "gpu.toml").write_text(GPU_PROFILE, encoding="utf-8")
    assert document(["predict", "--gpu", "mine, yours/gpu.toml", "--json"])["gpu"]["name"] == "Home-made 24GB"


def test_files_are_checked(own_folder: Path) -> None:
    (own_folder / "mine.toml").write_text(GPU_PROFILE, encoding="utf-8")
    (own_folder / "fits.toml").write_text(CALIBRATION, encoding="utf-8")
    lines = printed("gpus check mine.toml fits.toml").splitlines()
    assert lines == [
        "mine.toml: profile of Home-made 24GB is valid",
        "fits.toml: calibration synthetic of h100-sxm is valid",
    ]


def test_every_packaged_profile_is_valid() -> None:
    paths = [str(path) for path in sorted(FOLDER.glob("*.toml")) if path.stem != "index"]
    assert len(printed(["gpus", "check", *paths]).splitlines()) == len(paths) == len(gpu_names())


def test_a_calibration_of_no_known_part_is_refused(own_folder: Path) -> None:
    (own_folder / "fits.toml").write_text(CALIBRATION.replace("h100-sxm", "h1O0-sxm"), encoding="utf-8")
    assert "h1O0-sxm" in refusal("predict --calibration fits.toml")


def test_a_calibration_of_an_unknown_part_is_said(own_folder: Path) -> None:
    for gpu, more in (
        ("h100-sxm", ""),
        ("h100", ""),
        ("mine", "; no shipped part is called mine, so it serves a profile of that name"),
    ):
        text = CALIBRATION.replace('gpu = "h100-sxm"', f'gpu = "{gpu}"')
        (own_folder / "own.toml").write_text(text, encoding="utf-8")
        assert printed("gpus check own.toml").endswith(f" of {gpu} is valid{more}\n")
