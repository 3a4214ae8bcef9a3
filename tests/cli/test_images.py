"""Images on the command line: the report, the document, figures, formulas and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from costmodel.cli.text import milliseconds
from tests.architecture.vision_configs import LLAMA32_VISION, WHISPER
from tests.cli.runner import document, printed, refusal, run

GEMMA = "--model gemma-3-4b-it"


def saved(folder: Path, config: object) -> str:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return f"--model {folder}"


def test_the_report_says_what_the_images_are_and_cost() -> None:
    command = f"predict {GEMMA} --prompt 200 --images 2 --image-size 1024x768"
    text, found = printed(command), document(f"{command} --json")
    assert (
        "Images: 2 of 1,024 × 768 pixels in every prompt; each becomes 896 × 896, 4,096 patches and 260 tokens" in text
    )
    assert "They are 520 of the prompt's 720 tokens" in text
    assert found["images"]["tokens"] == 520
    for rung in found["rungs"].values():
        assert milliseconds(rung["prefill_encoder_s"]) in text
    assert "encoder.qkv_proj" in text
    assert "note: images: encoded at the efficiencies of the decoder's kernels" in text


def test_the_first_token_waits_for_the_encoder() -> None:
    plain, seen = (
        document(f"predict {GEMMA} --prompt 720 --json"),
        document(f"predict {GEMMA} --prompt 200 --images 2 --json"),
    )
    more = seen["spike"]["duration_s"] - plain["spike"]["duration_s"]
    assert more == pytest.approx(seen["rungs"]["calibrated"]["prefill_encoder_s"], rel=1e-9)


def test_a_budget_that_is_less_than_the_images_is_noted() -> None:
    text = printed(f"predict {GEMMA} --images 4 --prompt 100 --chunk 512")
    assert "note: images: vLLM encodes at most 512 features per step" in text


def test_audio_has_words_of_its_own(tmp_path: Path) -> None:
    text = printed(f"predict {saved(tmp_path, WHISPER)} --prompt 4 --context 100")
    assert "Audio: 30 s in every request, 3,000 frames and 1,500 states of the encoder" in text
    assert "  encoding audio" in text


def test_cross_attention_is_shown(tmp_path: Path) -> None:
    model = saved(tmp_path, LLAMA32_VISION)
    assert "decode_cross_attention" in printed(f"predict {model} --images 1")
    assert "decode_cross_attention" not in printed(f"predict {model}")
    shown = printed(f"models show {tmp_path}")
    assert "8 × cross-attention, 32 query and 8 KV heads of 128; dense 14,336" in shown
    assert "encoder of images: 40 layers of 1,280 and 5,120, 16 heads of 80" in shown


@pytest.mark.parametrize("figure", ["timeline", "heights", "breakdown", "roofline"])
def test_figures_are_drawn_with_images(figure: str, tmp_path: Path) -> None:
    target = tmp_path / "figure.svg"
    assert run(f"predict {GEMMA} --prompt 200 --images 2 --plot {target} --figure {figure}").exit_code == 0
    assert target.stat().st_size > 1000


def test_the_formula_has_the_terms_of_the_encoder() -> None:
    text = printed(f"formula prefill {GEMMA} --prompt 200 --images 2")
    terms = dict(line.split("=", 1) for line in text.splitlines() if line.startswith("  encoder."))
    found = {name.strip(): formula.strip() for name, formula in terms.items()}
    assert found["encoder.prefill_attention"] == "max(4·A_i·L_i·d_hi·h_i/F, 2·L_i·N_i·b_a·d_hi·h_i/W)"
    floor = document(f"predict {GEMMA} --prompt 200 --images 2 --calibration none --json")["rungs"]["roofline"]
    assert f"prefill = {milliseconds(floor['prefill_s'])} ms" in text
    assert "\\mathrm{encoder.up\\_proj}" in printed(f"formula prefill {GEMMA} --images 1 --latex")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("predict --images 1", "Llama-3.1-8B takes no images here"),
        (f"predict {GEMMA} --image-size 10x10", "image-size needs images (--images N)"),
        (
            f"predict {GEMMA} --images 1 --image-size ten",
            "image-size must be WIDTHxHEIGHT in pixels, such as 1024x1024",
        ),
        (f"predict {GEMMA} --images 100000", "images must be at most 10000"),
        (f"formula spike {GEMMA} --images 1 --chunk 512", "leave out --chunk"),
        ("simulate interference --images 1", "Llama-3.1-8B takes no images here"),
        ("simulate load --rate 1 --images 1", "Llama-3.1-8B takes no images here"),
        (f"simulate load {GEMMA} --rate 1 --image-size 10x10", "image-size needs images (--images N)"),
        (
            "simulate load --rate 1 --images 1 --decode-ms 10 --prefill-ms 100",
            "fixed step times say nothing of images: leave out --images",
        ),
        (f"formula {GEMMA} --images 1 --solve prompt --spike-ms 50", "--solve is for prompts without images"),
    ],
)
def test_refusals(command: str, said: str) -> None:
    assert said in refusal(command)


def test_other_commands_refuse_whisper(tmp_path: Path) -> None:
    said = refusal(f"simulate load {saved(tmp_path, WHISPER)} --rate 1")
    assert "encodes audio for every request, which only `costmodel predict` counts so far" in said


@pytest.mark.parametrize("command", ["interference --duration 2 --first 1", "load --rate 5 --requests 5 --output 5"])
def test_simulations_have_images(command: str) -> None:
    command = f"simulate {command} {GEMMA} --prompt 300 --images 2 --image-size 1024x768"
    text = " ".join(printed(command).split())
    assert "300 tokens and 2 images of 1,024 × 768 pixels (520 tokens more)" in text
    assert "note: images: encoded at the efficiencies of the decoder's kernels" in text
    work = document(f"{command} --json")["workload"]
    assert {name: value for name, value in work.items() if "image" in name or name == "prompt_tokens"} == {
        "prompt_tokens": 820, "images": 2, "image_width": 1024, "image_height": 768, "image_tokens": 520
    }  # fmt: skip


def test_the_figure_of_a_simulation_has_the_predicted_height(tmp_path: Path) -> None:
    from costmodel import predict
    from costmodel.cli.simulate_figures import _predicted
    from costmodel.simulation.interfering import run_interference

    target = tmp_path / "figure.svg"
    asked = f"simulate interference {GEMMA} --prompt 300 --images 2 --chunk 400 --duration 2 --first 1"
    assert run(f"{asked} --plot {target}").exit_code == 0
    assert target.stat().st_size > 1000
    options = {"model": "gemma-3-4b-it", "chunk": 400}
    found = run_interference(300, 32, 500, 10.0, 1.0, 2.0, 1, False, 1, None, None, options, images=2)  # type: ignore[arg-type]
    height = predict(300, model="gemma-3-4b-it", images=2, chunk=400).spike.height_s
    assert _predicted(found.runs[-1], found.document) == pytest.approx(height, rel=1e-9)
