"""``costmodel formula``: the printed page, LaTeX, values, elasticities and solutions are the model that ``predict`` evaluates."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from matplotlib.mathtext import MathTextParser

import costmodel
from costmodel.architecture.source import preset_config
from costmodel.documents import FORMULA_NAMES, RungName
from costmodel.symbolic.export import to_latex
from costmodel.symbolic.functions import smooth_max
from tests.cli.runner import document, printed, refusal, run
from tests.cli.samples import GPU_PROFILE, MODELS, ROUNDING, Case, Made


def test_the_calibrated_command(calibration_file: Path) -> None:
    path = str(calibration_file)
    found = document(["formula", "decode", "--json", "--calibration", path])
    assert found["rung"] == "calibrated"
    assert found["value_s"] == pytest.approx(costmodel.predict(calibration=path).best.decode_step_s, rel=ROUNDING)
    assert {"e_c_gemm_bf16", "p_gemm_bf16", "t_0_gemm_bf16"} <= {item["name"] for item in found["symbols"]}
    assert "smooth_max(" in printed(["formula", "decode", "--calibration", path])


def test_the_printed_roofline_says_how_to_get_the_calibrated_formula() -> None:
    hint = "with the efficiencies and overheads fitted for h100-sxm and vllm: --rung calibrated\n"
    assert printed("formula decode").endswith(hint)
    assert "rung calibrated" not in printed("formula decode --rung roofline")
    assert "rung calibrated" not in printed("formula decode --calibration none")
    assert "rung calibrated" not in printed("formula decode --latex")
    assert "rung calibrated" not in printed("formula decode --gpu mi300x")  # there is none
    assert "calibrated rung" in printed("formula decode --rung calibrated")


def test_the_help_says_which_rung_is_the_default_and_offers_no_lists() -> None:
    text = " ".join(printed("formula --help").split())
    assert "with --solve calibrated where GPU and engine have a calibration" in text
    assert "--rung calibrated" in text
    assert "[,…]" not in text
    assert "[,…]" in printed("predict --help")


CHUNKS = """
the larger of its values for the last full chunk and for the remainder after it:
  q = min(n, m - D),  s = (m - D)·max(0, ⌊n/(m - D)⌋ - 1)
  q = n - (m - D)·⌊n/(m - D)⌋,  s = (m - D)·⌊n/(m - D)⌋

where
"""


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (
            "decode --rung textbook",
            (
                "decode [s] of Llama-3.1-8B on 1 × NVIDIA H100 SXM5 80GB, textbook rung: the sum of\n",
                "weights = P·b/W",
                "4.794 ms with these values",
            ),
        ),
        (
            "decode --tp 4 --model Llama-3.1-70B",
            ("decode [s] of Llama-3.1-70B on 4 × NVIDIA H100 SXM5 80GB, roofline",),
        ),
        ("decode --rung textbook --params 8e9", ("8,000,000,000", "4.776 ms with these values")),
        ("prefill --rung textbook --params 8e9", ("2·P·n/F", "2·L·d_h·h·n²/F", "146.4 ms")),
        ("spike", ("max(", "n·(n + 1)", "131.3 ms with these values", "dense peak")),
        ("spike --chunk 2048", (CHUNKS, "(D + q)", "q·(q/2 + s + 1/2)", "36.21 ms with these values")),
        ("spike --chunk 4000", (CHUNKS, "69.92 ms with these values")),
        ("spike --chunk 9000", (CHUNKS, "131.3 ms with these values")),
        ("mixed --chunk 512", ("q", "s", "480")),
        ("spike --values", ("n", "D")),
    ],
)
def test_the_printed_formula(options: str, shown: tuple[str, ...]) -> None:
    text = printed(f"formula {options}")
    for fragment in shown:
        assert fragment in text
    assert "**" not in text
    assert "*" not in text


NUMBER = r"(?<![\w.])\d+(?:\.\d+)?(?:e[+-]?\d+)?"


def words_of(text: str) -> tuple[set[str], set[str]]:
    """Return the symbols and functions in the formulas of a page, and those that its table explains."""
    formulas, _, table = text.partition("\nwhere\n")
    explained = {line.split()[0] for line in table.splitlines() if line.startswith("  ")}
    right = (item for line in formulas.splitlines()[1:] for item in re.findall(r" = (.+?)(?:,  |$)", line))
    return {
        word for item in right for word in re.findall(r"[^\W\d]\w*", re.sub(NUMBER, "", item).replace("²", ""))
    }, explained


@pytest.mark.parametrize("options", ["", "--chunk 2048", "--rung textbook --chunk 2048"])
def test_every_symbol_is_explained_with_its_value(options: str) -> None:
    for model in ("Llama-3.1-8B", "gpt-oss-20b", "DeepSeek-V2-Lite"):
        words, explained = words_of(printed(f"formula spike --model {model} {options}"))
        chunk = {"q", "s"} if "--chunk" in options else set()
        assert words - {"max", "min"} - chunk == explained


def test_numbers_of_symbols_are_in_full(calibration_file: Path) -> None:
    """What has a suffix is told apart by it."""
    text = printed(["formula", "spike", "--model", "gpt-oss-20b", "--calibration", str(calibration_file)])
    rows = {
        line.split()[0]: re.split(r" {2,}", line.strip())[1:] for line in text.splitlines() if line.startswith("  ")
    }
    assert rows["F"] == ["dense peak at the operator's compute dtype", "989,000,000,000,000", "FLOP/s"]
    assert rows["b_w"][1:] == ["0.53125", "B"]
    assert rows["b_w_bf16"] == ["bytes per weight of a module, scales included (bf16)", "2", "B"]
    assert rows["e_c_gemm_bf16"] == ["compute efficiency in (0, 1], fitted (gemm bf16)", "0.81", "–"]
    assert rows["t_0_gemm_bf16"][0].endswith(" (gemm bf16)")
    assert float(rows["t_0_gemm_bf16"][1]) == 4e-6
    assert rows["V"][1:] == ["201,088", "entries"]


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ("spike", {"n", "D", "c"}),
        ("spike --rung textbook", {"n"}),
        ("decode", {"D", "c"}),
        ("spike --chunk 2048", {"n", "D", "c", "m"}),
        ("mixed --chunk 2048", {"q", "s", "D", "c"}),
    ],
)
def test_known_values_are_substituted_on_request(options: str, left: set[str]) -> None:
    words, explained = words_of(printed(f"formula {options} --values"))
    assert words - {"max", "min", *(("q", "s") if options == "spike --chunk 2048" else ())} == explained == left


@pytest.mark.parametrize("rung", ["textbook", "roofline", "calibrated"])
@pytest.mark.parametrize("chunk", [None, 2048])
def test_substituted_numbers_have_six_digits(
    rung: RungName, chunk: int | None, made_formula: Made, calibration_file: Path
) -> None:
    made = made_formula(Case("Llama-3.1-8B", rung, chunk=chunk))
    assert made.substituted().evaluate() == pytest.approx(made.evaluate(), rel=1e-5)
    assert {str(item) for item in made.substituted().arguments} <= {"n", "D", "c", "m"}
    budget = ["--chunk", str(chunk)] if chunk else []
    text = printed(["formula", "spike", "--values", "--rung", rung, "--calibration", str(calibration_file), *budget])
    terms = [line.partition(" = ")[2] for line in text.split("\n\n")[1].splitlines()]
    assert len(terms) == len(made.terms)
    numbers = [number for term in terms for number in re.findall(NUMBER, term)]
    assert any("." in number for number in numbers)
    for number in numbers:
        assert len(number.partition("e")[0].replace(".", "").strip("0")) <= 6


def balanced(text: str) -> bool:
    """Tell whether braces and \\left … \\right pair up."""
    depth = 0
    for character in re.sub(r"\\[{}]", "", text):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth < 0:
            return False
    return depth == 0 and text.count(r"\left") == text.count(r"\right")


@pytest.mark.parametrize(
    "options",
    ["decode", "spike --chunk 2048", "spike --values", "prefill --rung textbook", "spike --model gpt-oss-20b"],
)
def test_latex_is_one_aligned_block(options: str) -> None:
    text = printed(f"formula {options} --latex")
    assert text.startswith("\\begin{align*}\n")
    assert text.endswith("\\end{align*}\n")
    *lines, total = text.splitlines()[1:-1]
    for line in lines:
        assert line.count("&=") == 1
        assert line.endswith(r" \\")
        assert balanced(line)
    assert balanced(total)
    terms = [left for left in (line.partition(" &=")[0] for line in lines) if left.startswith("t_")]
    left, _, right = total.partition(" &= ")
    assert left == rf"t_{{\mathrm{{{options.partition(' ')[0]}}}}}"
    chunked = "--chunk" in options
    assert right == (rf"\max_{{(q,\,s)}} ({' + '.join(terms)})" if chunked else " + ".join(terms))
    assert [line[0] for line in lines[: len(lines) - len(terms)]] == (["q", "s", "q", "s"] if chunked else [])


@pytest.mark.parametrize("model", MODELS)
def test_latex_of_every_term_can_be_set(model: str, made_formula: Made) -> None:
    parser = MathTextParser("path")
    for rung in ("textbook", "roofline", "calibrated"):
        for term in made_formula(Case(model, rung)).terms:
            text = to_latex(term.expression)
            assert balanced(text)
            if not term.expression.has(smooth_max):
                assert parser.parse(f"${text}$").width > 0


# elasticities -----------------------------------------------------------------------------------------------------------


def elasticity(found: dict[str, Any], symbol: str) -> float:
    """Return the elasticity of one symbol in the document of the command."""
    return {item["symbol"]: item["elasticity"] for item in found["elasticities"]}[symbol]


@pytest.mark.parametrize("rung", ["roofline", "calibrated"])
@pytest.mark.parametrize(
    ("symbol", "argument", "value"), [("n", "prompt", 8000), ("D", "streams", 32), ("c", "context", 500)]
)
def test_elasticities_of_the_workload(
    rung: str, symbol: str, argument: str, value: int, calibration_file: Path
) -> None:
    calibration = str(calibration_file) if rung == "calibrated" else "none"
    found = document(["formula", "spike", "--elasticities", "--json", "--rung", rung, "--calibration", calibration])
    assert found["schema"] == "costmodel.elasticities/1"
    below, at, above = (
        costmodel.predict(**{argument: value + step, "calibration": calibration}).best.spike_s for step in (-1, 0, 1)
    )
    assert elasticity(found, symbol) == pytest.approx((above - below) / 2 * value / at, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize(
    ("symbol", "key"), [("L", "num_hidden_layers"), ("d_ff", "intermediate_size"), ("V", "vocab_size")]
)
def test_elasticities_of_the_model(symbol: str, key: str, own_folder: Path) -> None:
    config = preset_config("Llama-3.1-8B")

    def seconds(step: int) -> float:
        path = own_folder / f"{key}{step}.json"
        path.write_text(json.dumps({**config, key: config[key] + step}), encoding="utf-8")
        return costmodel.predict(model=str(path)).rungs.roofline.spike_s

    expected = (seconds(1) - seconds(-1)) / 2 * config[key] / seconds(0)
    found = document("formula spike --elasticities --json --rung roofline")
    assert elasticity(found, symbol) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize(("symbol", "old", "new"), [("F", "1e14", "{:.12g}e14"), ("W", "1e12", "{:.12g}e12")])
def test_elasticities_of_the_part(symbol: str, old: str, new: str, own_folder: Path) -> None:
    def seconds(factor: float) -> float:
        path = own_folder / f"part{factor}.toml"
        path.write_text(GPU_PROFILE.replace(old, new.format(factor)), encoding="utf-8")
        return costmodel.predict(gpu=str(path)).best.spike_s

    step = 1e-5
    expected = (seconds(1 + step) - seconds(1 - step)) / (2 * step) / seconds(1)
    (own_folder / "own.toml").write_text(GPU_PROFILE, encoding="utf-8")
    found = document("formula spike --gpu own.toml --elasticities --json")
    assert elasticity(found, symbol) == pytest.approx(expected, rel=1e-6)


def test_elasticities_of_rates_and_bytes_add_up() -> None:
    """A time at datasheet rates is homogeneous: scaling every rate by x divides it by x."""
    found = document("formula spike --elasticities --json --rung roofline")
    assert elasticity(found, "F") + elasticity(found, "W") == pytest.approx(-1, rel=1e-9)


def test_the_strongest_comes_first() -> None:
    values = [abs(item["elasticity"]) for item in document("formula spike --elasticities --json")["elasticities"]]
    assert values == sorted(values, reverse=True)
    text = printed("formula decode --elasticities --rung roofline")
    what = "Llama-3.1-8B on 1 × NVIDIA H100 SXM5 80GB"
    assert text.startswith(f"1 % more of each changes the decode of {what} (5.153 ms, roofline rung) by\n")
    assert "no effect: F" in text


# solve ------------------------------------------------------------------------------------------------------------------


def test_the_largest_prompt_is_printed() -> None:
    found = document("formula --solve prompt --spike-ms 50 --json")
    assert found["schema"] == "costmodel.solution/1"
    assert found["status"] == "found"
    value = found["value"]
    assert costmodel.predict(value).best.spike_s <= 0.05 < costmodel.predict(value + 1).best.spike_s
    text = printed("formula --solve prompt --spike-ms 50")
    assert found["rung"] == "calibrated"
    assert f"prompt n = {value:,}: the largest with spike ≤ 50.0000 ms (calibrated rung)" in text
    assert found == json.loads(costmodel.solve("prompt", spike_s=0.05).model_dump_json(by_alias=True))


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_the_engines_calibration_is_the_one_solved(engine: str) -> None:
    found = document(f"formula --solve prompt --spike-ms 50 --engine {engine} --json")
    assert found["rung"] == "calibrated"
    at, after = (costmodel.predict(found["value"] + step, engine=engine).best.spike_s for step in (0, 1))
    assert (found["at_value"], found["at_next"]) == (at, after)
    assert at <= 0.05 < after


@pytest.mark.parametrize("options", ["--calibration none", "--gpu mi300x", "--rung roofline"])
def test_without_a_calibration_the_roofline_is_solved(options: str) -> None:
    found = document(f"formula --solve prompt --spike-ms 50 --json {options}")
    assert found["rung"] == "roofline"
    gpu = "mi300x" if "mi300x" in options else "h100"
    assert found["at_value"] == costmodel.predict(found["value"], gpu).rungs.roofline.spike_s


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_the_engines_calibration_is_the_one_printed(engine: str) -> None:
    found = document(f"formula decode --rung calibrated --engine {engine} --json")
    assert found["rung"] == "calibrated"
    assert found["value_s"] == pytest.approx(costmodel.predict(engine=engine).best.decode_step_s, rel=ROUNDING)


def test_without_a_calibration_the_formula_is_the_rooflines() -> None:
    for options in ("--calibration none", "--gpu mi300x", "--rung roofline --calibration none"):
        assert document(f"formula decode --json {options}")["rung"] == "roofline"


def test_the_prompt_of_28_decode_steps() -> None:
    found = document("formula --solve prompt --ratio 28 --json")
    at, after = (costmodel.predict(found["value"] + step).best.spike_ratio for step in (0, 1))
    assert (found["at_value"], found["at_next"]) == (at, after)
    assert at <= 28 < after
    assert f"{found['value']:,}: the largest with spike in decode steps ≤ 28.0000 ×" in printed(
        "formula --solve prompt --ratio 28"
    )


def test_no_prompt_is_short_enough() -> None:
    result = run("formula --solve prompt --spike-ms 1")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("error: none: with a prompt of one token the spike is already")
    result = run("formula --solve prompt --spike-ms 1 --json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["status"] == "none"
    assert result.stderr == ""


def test_every_number_of_streams_will_do() -> None:
    text = printed("formula --solve streams --decode-ms 5 --rung textbook")
    assert text.startswith("unbounded: at 1,000,000 the decode step is still 4.79")
    found = document("formula --solve streams --decode-ms 5 --rung textbook --json")
    assert (found["status"], found["value"], found["at_next"]) == ("unbounded", 1_000_000, None)


@pytest.mark.parametrize("unknown", ["prompt", "streams", "context"])
def test_the_option_of_the_unknown_itself_does_not_matter(unknown: str) -> None:
    other = {"prompt": "--prompt 17", "streams": "--streams 17", "context": "--context 17"}[unknown]
    plain = document(f"formula --solve {unknown} --spike-ms 300 --json")
    assert document(f"formula --solve {unknown} --spike-ms 300 --json {other}") == plain


@pytest.mark.parametrize(
    "options",
    [
        "--elasticities --python",
        "--values --js",
        "--solve prompt --spike-ms 50 --latex",
        "--solve prompt --spike-ms 50 --elasticities",
    ],
)
def test_options_that_cannot_both_be_met_are_refused(options: str) -> None:
    """Nothing that was asked for is silently left out."""
    refusal(f"formula {options}")


def test_all_formulas_on_all_rungs_print(calibration_file: Path) -> None:
    for name in FORMULA_NAMES:
        for rung in ("textbook", "roofline", "calibrated"):
            text = printed(["formula", name, "--rung", rung, "--calibration", str(calibration_file)])
            what = "Llama-3.1-8B on 1 × NVIDIA H100 SXM5 80GB"
            assert text.startswith(f"{name} [s] of {what}, {rung} rung: the sum of\n")
