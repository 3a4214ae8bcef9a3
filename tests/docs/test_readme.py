"""README.md says what the code does."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from pathlib import Path
from typing import Any

import costmodel
from costmodel.architecture.source import preset_config
from costmodel.cli.figures.style import format_seconds
from costmodel.cli.main import COMMANDS
from costmodel.hardware.shipped import shipped_calibration
from tests.cli.runner import printed, run


def page(repo_root: Path) -> str:
    return (repo_root / "README.md").read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """Return the code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_quoted_report_is_what_the_command_prints(repo_root: Path) -> None:
    [quoted] = blocks(page(repo_root), "text")
    lines = printed("predict --prompt 8000 --gpu h100").splitlines()
    for line in quoted.splitlines():
        assert line in lines


def test_the_set_up_blocks_are_two_commands(repo_root: Path) -> None:
    text = page(repo_root)
    commands = re.findall(r"<!-- set-up: (\w+) -->\n```bash\n(.*?)\n```", text, re.DOTALL)
    assert [name for name, _ in commands] == ["run", "test"]
    for _, command in commands:
        assert "\n" not in command
        assert command.startswith("python3 -m venv .venv && ")
    assert commands[0][1].endswith(".venv/bin/costmodel predict --prompt 8000 --gpu h100")


def test_every_command_of_the_page_runs(repo_root: Path, own_folder: Path) -> None:
    model = Path.home() / "my-model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(preset_config("Llama-3.2-1B")), encoding="utf-8")
    (own_folder / "docs" / "figures").mkdir(parents=True)
    text = page(repo_root)
    lines = [line for block in blocks(text, "bash") for line in block.splitlines() if line.startswith("costmodel ")]
    names = ("costmodel fit", "costmodel simulate")  # no commands
    lines += [line for line in re.findall(r"`(costmodel [^`\n]+)`", text) if line not in names]
    assert len(lines) >= 12
    asked = [shlex.split(line, comments=True)[1:] for line in lines]
    assert {words[0] for words in asked if words[0] in COMMANDS} == set(COMMANDS)
    failed = {}
    for line, words in zip(lines, asked, strict=True):
        if {"FILE", "MODEL_DIR"} & set(words) or (
            words[0] == "fit" and not importlib.util.find_spec("aiconfigurator_core")
        ):
            continue
        result = run([word.replace("~", str(Path.home())) for word in words])
        if result.exit_code != 0 or (not result.stdout and "--plot" not in words):
            failed[line] = result.stderr or repr(result.exception)
    assert not failed
    assert (own_folder / "spike.png").read_bytes().startswith(b"\x89PNG")
    assert (own_folder / "docs" / "figures" / "timeline.png").is_file()
    if importlib.util.find_spec("aiconfigurator_core"):
        assert costmodel.predict(calibration=own_folder / "h100.toml").headline == "calibrated"


def test_the_comments_beside_the_commands_hold(repo_root: Path) -> None:
    text = page(repo_root)
    answers = {name: run(f"predict --prompt {name} --json").stdout for name in ("chat", "summarisation")}
    tokens = {name: json.loads(text)["workload"]["prompt_tokens"] for name, text in answers.items()}
    assert tokens == {"chat": 1730, "summarisation": 7060}
    [(every, percentile)] = re.findall(r"predict --every (\S+) +#.*now (p[\d.]+) moves", text)
    assert costmodel.predict(every=float(every)).spike.moves[percentile]
    assert not costmodel.predict().spike.moves[percentile]


def test_the_python_block_runs_and_says_the_truth(repo_root: Path) -> None:
    [code] = blocks(page(repo_root), "python")
    space: dict[str, Any] = {}
    exec(code, space)  # the document's example is what is tested
    answer, times = space["answer"], space["times"]
    assert answer == costmodel.predict(8000, chunk=2048)
    assert answer.spike.height_s > 0
    assert answer.spike.moves["p99.9"] in (True, False)
    assert times.total.shape == (1000, 1000)
    value = costmodel.solve("prompt", spike_s=0.050, gpu="h100").value
    assert value is not None
    assert costmodel.predict(value).spike.height_s <= 0.050 < costmodel.predict(value + 1).spike.height_s


def test_numbers_in_the_text_hold(repo_root: Path) -> None:
    text = " ".join(page(repo_root).split())
    answer = costmodel.predict()
    textbook, roofline, calibrated = answer.rungs.textbook, answer.rungs.roofline, answer.rungs.calibrated
    assert calibrated is not None
    lesson = costmodel.predict(params=8e9).rungs.textbook
    assert (
        f"**Why {calibrated.spike_s * 1e3:.0f} ms and not {lesson.spike_s * 1e3:.0f}, why "
        f"{calibrated.decode_step_s * 1e3:.1f} and not {textbook.decode_step_s * 1e3:.1f}?**" in text
    )
    spike = {item.name: item.time_s * 1e3 for item in calibrated.operators}
    decode = {item.name: item.time_s * 1e3 for item in calibrated.decode_operators}
    floor = {item.name: item.time_s * 1e3 for item in roofline.decode_operators}
    matrices = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj", "lm_head")
    for said in (
        f"({roofline.prefill_linear_s * 1e3:.0f} → {calibrated.prefill_linear_s * 1e3:.0f} ms)",
        f"({roofline.prefill_attention_s * 1e3:.0f} → {calibrated.prefill_attention_s * 1e3:.0f} ms)",
        f"per layer ({spike['elementwise']:.0f} ms); the engine adds {spike['overhead']:.0f} ms",
        f"({sum(floor[name] for name in matrices):.1f} → {sum(decode[name] for name in matrices):.1f} ms)",
        f"forgets ({decode['decode_attention']:.1f} ms), and pays {decode['overhead']:.1f} ms to the engine",
    ):
        assert said in text
    fitted = shipped_calibration("h100-sxm", "vllm")
    assert fitted is not None
    gemm, attention = fitted.operators["gemm.bf16"], fitted.operators["prefill_attention.bf16"]
    assert f"at {gemm.number('compute_efficiency'):.0%} of its peak".replace("%", " %") in text
    efficiency = attention.number("compute_efficiency")
    multiplied = roofline.prefill_attention_s / efficiency * 1e3
    assert f"Attention multiplies at {100 * efficiency:.0f} % and not at 100, which makes {multiplied:.0f} ms" in text
    assert roofline.prefill_attention_s * 1e3 < multiplied < calibrated.prefill_attention_s * 1e3
    assert f"as long as {fitted.operators['elementwise'].number('passes'):.0f} passes" in text
    assert f"at {gemm.number('bandwidth_efficiency'):.0%} of the bandwidth".replace("%", " %") in text
    assert f"What a default server does is that of {answer.engine.name};" in text
    assert f"{len(costmodel.gpu_names())} parts, every number with its source" in text


def test_the_errors_of_the_examples_model_are_told(repo_root: Path) -> None:
    text = " ".join(page(repo_root).split())
    accuracy = (repo_root / "docs" / "accuracy.md").read_text(encoding="utf-8")
    [(tpot, ttft)] = re.findall(r"^\| Llama-3\.1-8B \| \d+ \| ([\d.]+)% / ([\d.]+)% \|", accuracy, re.MULTILINE)
    assert f"its median error is {float(ttft):.0f} %; TPOT's is {float(tpot):.0f} %" in text


def test_errors_in_the_text_are_those_of_the_accuracy_page(repo_root: Path) -> None:
    text = " ".join(page(repo_root).split())
    accuracy = (repo_root / "docs" / "accuracy.md").read_text(encoding="utf-8")
    [shown] = re.findall(
        r"closed loops is ([\d.]+) % for TPOT and (\d+) % for TTFT; (\d+) and (\d+) % on a GPU held out, (\d+) and (\d+) % on a model "
        r"held out; aiconfigurator's own predictions of the same rows are off by (\d+) and (\d+) %",
        text,
    )
    [simulated] = re.findall(
        r"request by request, TTFT is off by (\d+) %, and by (\d+) and (\d+) % with the GPU or model held out", text
    )
    splits = ("random", "GPU held out", "model held out")

    def medians(name: str) -> tuple[float, float]:
        [line] = [line for line in accuracy.splitlines() if f"| {name}" in line]
        cells = [cell.strip() for cell in line.split("|")]
        return float(cells[4].rstrip("%")), float(cells[8].rstrip("%"))

    found = [number for name in splits for number in medians(f"{name} | costmodel (")]
    found += medians("– | aiconfigurator")
    assert float(shown[0]) == found[0]
    assert [int(number) for number in shown[1:]] == [round(number) for number in found[1:]]
    assert [int(number) for number in simulated] == [
        round(medians(f"{name} | costmodel, simulated")[1]) for name in splits
    ]


def test_the_figure_is_there_and_says_what_its_caption_says(repo_root: Path) -> None:
    figures = dict(re.findall(r"!\[(.*?)\]\((docs/figures/timeline.*?)\)", page(repo_root)))
    [(caption, target)] = figures.items()
    assert (repo_root / target).read_bytes().startswith(b"\x89PNG")
    answer = costmodel.predict()
    assert f"decode steps of {answer.best.decode_step_s * 1e3:.0f} ms" in caption
    assert f"one step of {answer.spike.height_s * 1e3:.0f} ms" in caption


def test_the_simulated_figure_is_there_and_says_what_its_caption_says(repo_root: Path) -> None:
    [(caption, target)] = re.findall(r"!\[(.*?)\]\((docs/figures/itl.*?)\)", page(repo_root))
    assert (repo_root / target).read_bytes().startswith(b"\x89PNG")
    said = []
    for chunk in (512, None):
        found = costmodel.simulate_interference(chunk=chunk).injected
        assert found is not None
        assert found.itl is not None
        assert found.ttft is not None
        said += [f"{format_seconds(found.itl.max_s)} and", f"{format_seconds(found.ttft.p50_s)}"]
    for words in said:
        assert words in caption


def test_the_fixed_steps_give_what_the_comment_says(repo_root: Path) -> None:
    [(decode, prefill, gaps, stalls)] = re.findall(
        r"--decode-ms (\S+) --prefill-ms (\S+) +# fixed step times: ([\d,]+) gaps per stream, (\d+) of them spikes",
        page(repo_root),
    )
    found = costmodel.simulate_interference(decode_s=float(decode) / 1e3, prefill_s=float(prefill) / 1e3).injected
    assert found is not None
    assert found.gaps_per_stream == int(gaps.replace(",", ""))
    assert found.stalls == 32 * int(stalls)


def test_every_link_leads_somewhere(repo_root: Path) -> None:
    pages = [repo_root / "README.md", *sorted((repo_root / "docs").glob("*.md"))]
    for path in pages:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (path.parent / target).exists(), f"{path.name}: {target}"
