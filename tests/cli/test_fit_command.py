"""``costmodel fit``: refusals in one line, and a calibration of measured kernels that ``predict`` reads."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

import costmodel
from costmodel.cli.fit_command import RULES
from costmodel.cli.text import count, percent
from costmodel.hardware.calibration import read_calibration
from costmodel.hardware.shipped import shipped_calibrations
from costmodel.validation.datasets.end_to_end_rules import SWITCHABLE
from costmodel.validation.datasets.expert_rules import expert_rules
from costmodel.validation.datasets.rtx4090 import RunSettings
from costmodel.validation.datasets.rules import all_reduce_rules, decode_rules, gemm_rules, prefill_rules
from costmodel.validation.fitting.rtx4090 import attention_rules
from tests.cli.runner import document, parse, printed, refusal, run, script

MEASURED = importlib.util.find_spec("aiconfigurator_core") is not None
silicon = pytest.mark.skipif(not MEASURED, reason="needs aiconfigurator-core (extra silicon)")
HEADS = ["bf16", "kv-fp8", "bf16.d64", "bf16.d64.w128", "bf16.d256", "kv-fp8.d64", "kv-fp8.d64.w128"]
ATTENTION = [f"{phase}_attention.{heads}" for heads in HEADS for phase in ("prefill", "decode")]
KERNELS = [
    *("gemm.bf16", "gemm.fp8", "gemm.fp8-block", "experts.bf16", "experts.fp8", "experts.fp8-block", "experts.mxfp4"),
    *(*ATTENTION, "all_reduce"),
]


@pytest.fixture
def without_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the extra is not installed."""
    found = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "aiconfigurator_core" else found(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find)


def test_the_help_says_what_it_needs_and_does() -> None:
    text = printed("fit --help")
    assert "llm-costmodel[silicon]" in re.sub(r"-\n +", "-", text)
    assert "--dataset [silicon|kernels|rtx4090]" in text
    for name in ("--gpu", "--engine [vllm|sglang|trtllm]", "--without-rule", "--seed", "--output", "--force", "--json"):
        assert name in text
    assert "\n  fit " in printed("--help")


def test_the_help_names_the_rules_that_can_be_switched_off() -> None:
    text = " ".join(printed("fit --help").split())
    gpus = sorted({gpu for gpu, _ in shipped_calibrations()})
    found = {
        rule.name
        for rules in (gemm_rules, expert_rules, prefill_rules, decode_rules, all_reduce_rules)
        for gpu in gpus
        for rule in rules(gpu)
    }
    assert found == set(RULES["kernels"])
    assert RULES["silicon"] == SWITCHABLE
    settings = RunSettings("", "", 2588, 16, 0.9, 128, 2048, 8192, True, True, False, 24 * 2**30)
    assert [rule.name for rule in attention_rules(settings)] == list(RULES["rtx4090"])
    assert all(name in text for names in RULES.values() for name in names)


def test_without_the_measurements_it_says_what_to_install(without_measurements: None, own_folder: Path) -> None:
    for options in ("", "--json", "--output h100.toml", "--engine sglang"):
        message = refusal(f"fit --gpu h100 {options}")
        assert "aiconfigurator-core" in message
        assert "pip install 'llm-costmodel[silicon]'" in message
    assert list(own_folder.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "fragments"),
    [
        ("", ("--gpu",)),
        ("--gpu h10O", ("unknown GPU 'h10O'", "did you mean h100")),
        ("--gpu ''", ("GPU name is empty",)),
        ("--gpu h100 --engine vlm", ("--engine", "'vlm'", "'vllm'", "'sglang'", "'trtllm'")),
        ("--gpu h100 --dataset kernel", ("--dataset", "'kernel'", "'kernels'")),
        ("--gpu h100 --seed x", ("--seed", "'x'")),
        ("--gpu h100 --output there.toml", ("there.toml exists", "--force")),
        ("--gpu h100 --output folder", ("folder", "is a folder")),
        ("--gpu h100 --output missing/h100.toml", ("missing", "does not exist")),
        ("--gpu h100 extra", ("extra",)),
        ("--gpu h100 --data folder", ("--data", "rtx4090")),
        ("--dataset rtx4090", ("LLMServingSim", "attention.csv")),
        ("--dataset rtx4090 --data missing", ("missing", "no such folder")),
        ("--dataset rtx4090 --data folder --gpu h100", ("rtx-4090", "h100")),
        ("--dataset rtx4090 --data folder --engine sglang", ("vllm", "sglang")),
        ("--gpu h100 --sed 1", ("--sed", "--seed")),
    ],
)
def test_wrong_input_is_refused_in_one_line(options: str, fragments: tuple[str, ...], own_folder: Path) -> None:
    (own_folder / "there.toml").write_text("precious", encoding="utf-8")
    (own_folder / "folder").mkdir()
    message = refusal(f"fit {options}")
    for fragment in fragments:
        assert fragment in message
    assert sorted(path.name for path in own_folder.iterdir()) == ["folder", "there.toml"]
    assert (own_folder / "there.toml").read_text(encoding="utf-8") == "precious"


@silicon
@pytest.mark.parametrize(
    ("options", "fragments"),
    [
        ("--gpu l4", ("l4", "vllm", "measured")),
        ("--gpu l4 --engine sglang", ("l4", "sglang")),
        ("--gpu mi300x", ("mi300x", "vllm")),
        ("--gpu v100", ("v100", "vllm")),
        ("--gpu t4", ("t4", "vllm")),
        ("--gpu h100 --seed=-1", ("seed", "-1")),
        ("--gpu h100 --without-rule narow", ("narow", "narrow")),
    ],
)
def test_what_cannot_be_fitted_is_refused_in_one_line(
    options: str, fragments: tuple[str, ...], own_folder: Path
) -> None:
    message = refusal(f"fit {options} --output new.toml")
    for fragment in fragments:
        assert fragment in message
    assert list(own_folder.iterdir()) == []


@silicon
def test_a_fit_is_written_and_predicts(own_folder: Path) -> None:
    result = run("fit --dataset kernels --gpu h100 --output h100.toml")
    assert result.exit_code == 0, result.stderr or result.exception
    calibration = read_calibration(own_folder / "h100.toml")
    assert result.stderr == f"wrote h100.toml: {calibration.name}\n"
    assert result.stdout.startswith(f"{calibration.name}: errors on held-out shapes\n")
    assert (calibration.gpu, calibration.engine) == ("h100-sxm", "vllm")
    assert list(calibration.operators) == KERNELS
    assert all(item.residuals and item.ranges for item in calibration.operators.values())
    assert calibration.provenance.command == "costmodel fit --dataset kernels --gpu h100-sxm --engine vllm --seed 0"
    assert printed("gpus check h100.toml") == f"h100.toml: calibration {calibration.name} of h100-sxm is valid\n"
    found = document("predict --calibration h100.toml --json")
    assert (found["headline"], found["calibration"]) == ("calibrated", calibration.name)
    for name in ("decode_step_s", "prefill_s", "spike_s"):
        low, high = found["intervals"][name]
        assert found["rungs"]["roofline"][name] < low < found["rungs"]["calibrated"][name] < high
    # The floor is beaten by no kernel, and none is twice as slow as the datasheet has it.
    assert 1 < found["rungs"]["calibrated"]["prefill_s"] / found["rungs"]["roofline"]["prefill_s"] < 2
    assert any("left out" in text and "overhead.graph" in text for text in found["warnings"])


@silicon
def test_the_document_is_what_the_report_shows(own_folder: Path) -> None:
    found = document("fit --dataset kernels --gpu h100 --json")
    assert (found["schema"], found["gpu"], found["engine"]) == ("costmodel.fit/1", "h100-sxm", "vllm")
    assert [item["operator"] for item in found["operators"]] == KERNELS
    text = printed("fit --dataset kernels --gpu h100")
    for item in found["operators"]:
        row, parameters = (line for line in text.splitlines() if line.startswith(f"  {item['operator']}  "))
        cells = [item["form"], count(item["rows"]), count(sum(item["excluded"].values()))]
        cells += [percent(item["held_out"][name]) for name in ("median", "mean", "p90")]
        assert [cell for cell in cells if cell not in row] == []
        assert percent(item["held_out_all_rows"]["median"]) in row
        served = item["operator"].startswith(("gemm", "prefill_attention", "decode_attention"))
        assert (item["held_out_like_a_servers"] is not None) is served
        assert 0 < item["held_out"]["median"] <= item["held_out"]["p90"] < 1
        assert item["standard_errors"].keys() <= item["parameters"].keys()
        for name in item["parameters"]:
            assert f"{name} " in parameters
        size = len(item["correlations"])
        assert all(len(line) == size for line in item["correlations"])
    rules = Counter[str]()
    for item in found["operators"]:
        rules.update(item["excluded"])
    [excluded] = [line for line in text.splitlines() if line.startswith("Excluded by rule: ")]
    assert sorted(excluded.removeprefix("Excluded by rule: ").split("; ")) == sorted(
        f"{rule} {number:,}" for rule, number in rules.items()
    )
    assert list(own_folder.iterdir()) == []


@silicon
def test_the_document_is_strict_json_where_parameters_are_at_their_bounds() -> None:
    found = document("fit --dataset kernels --gpu b200 --engine trtllm --json")
    text = printed("fit --dataset kernels --gpu b200 --engine trtllm")
    marked = [(name, item["operator"]) for item in found["operators"] for name in item["at_bound"]]
    assert marked
    for name, operator in marked:
        assert f"note: {name} of {operator} is at its bound" in text


@silicon
def test_with_a_file_the_document_is_still_all_there_is_on_stdout(own_folder: Path) -> None:
    found = script("fit --dataset kernels --gpu h100 --json --output h100.toml")
    assert (found.returncode, found.stderr) == (0, "wrote h100.toml: h100-sxm vllm, kernels\n")
    assert parse(found.stdout) == document("fit --dataset kernels --gpu h100 --json")
    assert costmodel.predict(calibration=own_folder / "h100.toml").headline == "calibrated"


@silicon
def test_an_existing_file_needs_force(own_folder: Path) -> None:
    path = own_folder / "h100.toml"
    path.write_text("precious", encoding="utf-8")
    assert "h100.toml exists; use --force" in refusal("fit --dataset kernels --gpu h100 --output h100.toml")
    assert path.read_text(encoding="utf-8") == "precious"
    assert run("fit --dataset kernels --gpu h100 --output h100.toml --force").exit_code == 0
    assert read_calibration(path).gpu == "h100-sxm"


@silicon
def test_rules_and_the_seed_change_the_fit() -> None:
    def gemm(options: str) -> Any:
        return document(f"fit --dataset kernels --gpu h100 --json {options}")["operators"][0]

    plain, all_rows, other = gemm(""), gemm("--without-rule narrow"), gemm("--seed 1")
    assert plain == gemm("--seed 0")
    assert plain["excluded"]["narrow"] > 0
    assert "narrow" not in all_rows["excluded"] or not all_rows["excluded"]["narrow"]
    assert all_rows["rows"] > plain["rows"] == other["rows"]
    assert other["held_out"] != plain["held_out"]
    assert other["parameters"]["compute_efficiency"] == pytest.approx(
        plain["parameters"]["compute_efficiency"], rel=0.02
    )


def test_the_layer_tables_are_fitted(shared_folder: Path, own_folder: Path) -> None:
    result = run(f"fit --dataset rtx4090 --data {shared_folder / 'data' / 'rtx4090-llama-3.1-8b'} --output new.toml")
    assert result.exit_code == 0, result.stderr or result.exception
    calibration = read_calibration(own_folder / "new.toml")
    assert (calibration.gpu, calibration.engine) == ("rtx-4090", "vllm")
    assert calibration.provenance.command == "costmodel fit --dataset rtx4090 --data FOLDER --engine vllm --seed 0"
    for name in ("sum of a layer's GEMMs", "attention of mixed steps", *calibration.operators):
        assert f"  {name}  " in result.stdout
