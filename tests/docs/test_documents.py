"""The pages of docs/ agree with the code that they describe."""

from __future__ import annotations

import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import costmodel
from costmodel.hardware.calibration import DTYPE_SUFFIXED, FORMS, OPERATORS, OTHER_FORMS, read_calibration
from costmodel.simulation.detailing import RequestRow
from costmodel.simulation.traces import FORMS as TRACE_FORMS
from costmodel.symbolic.nomenclature import ENTRIES
from tests.cli.runner import document, printed


def page(repo_root: Path, name: str) -> str:
    return (repo_root / "docs" / name).read_text(encoding="utf-8")


def keys(value: Any) -> Iterator[str]:
    """Every key of a document, however deep."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from keys(item)
    elif isinstance(value, list):
        for item in value:
            yield from keys(item)


def test_the_nomenclature_is_up_to_date(repo_root: Path) -> None:
    made = runpy.run_path(str(repo_root / "docs" / "make_nomenclature.py"))["text"]()
    assert made == page(repo_root, "nomenclature.md")
    for entry in ENTRIES:
        assert f"| {entry.name} | ${entry.latex}$ | {entry.unit} | {entry.meaning} |" in made


def example(repo_root: Path, folder: Path) -> Path:
    """Write the example of docs/calibration.md to a file."""
    [content] = re.findall(r"^```toml\n(.*?)^```$", page(repo_root, "calibration.md"), re.MULTILINE | re.DOTALL)
    path = folder / "example.toml"
    path.write_text(content, encoding="utf-8")
    return path


def test_the_calibration_of_the_page_predicts(repo_root: Path, own_folder: Path) -> None:
    path = example(repo_root, own_folder)
    assert printed(["gpus", "check", str(path)]).endswith("is valid\n")
    found = document(["predict", "--calibration", str(path), "--json"])
    assert found["headline"] == "calibrated"
    assert found["calibration"] == read_calibration(path).name
    for name in ("decode_step_s", "prefill_s", "spike_s"):
        low, high = found["intervals"][name]
        assert low < found["rungs"]["calibrated"][name] < high
        assert found["rungs"]["roofline"][name] < found["rungs"]["calibrated"][name]


def test_the_page_of_calibrations_names_every_form_and_parameter(repo_root: Path) -> None:
    text = page(repo_root, "calibration.md")
    for operator, form in OPERATORS.items():
        assert f"`{operator}`" in text
        for named in (form, *OTHER_FORMS.get(operator, ())):
            assert f"`{named}`" in text
    for parameters in FORMS.values():
        for name in parameters:
            assert f"`{name}`" in text
    for variable in ("tokens", "kv_tokens", "flops", "bytes"):
        assert f"`{variable}`" in text
    assert f"`{DTYPE_SUFFIXED[0]}.bf16`" in text


def test_the_columns_of_the_table_of_requests_are_all_there(repo_root: Path) -> None:
    text = page(repo_root, "json.md").partition("## The table of requests")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]+`) \| ([^|]*) ?\|", text, re.MULTILINE)
    assert tuple(name for cell, _ in rows for name in re.findall(r"`(\w+)`", cell)) == RequestRow._fields
    for cell, unit in rows:
        for name in re.findall(r"`(\w+)`", cell):
            expected = "s" if name.endswith("_s") else "tokens" if "tokens" in name else ""
            assert unit.strip() == expected


def test_the_commands_of_the_page_of_traces_run(repo_root: Path, own_folder: Path) -> None:
    text = page(repo_root, "traces.md")
    for form in TRACE_FORMS:
        assert f"| `{form}` |" in text
    (own_folder / "TRACE.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,100,5\n0.5,30,2\n", "utf-8")
    [block] = re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for line in block.splitlines():
        printed(shlex.split(line, comments=True)[1:])
    [code] = re.findall(r"`(costmodel\.simulate_trace\(.*?\))`", text)
    assert eval(code, {"costmodel": costmodel}).result.requests.done == 2  # the page's example is what is tested


EVERYTHING = "predict --loras 2 --calibration {path} --pp 2 --cached-prefix 100 --draft-model eagle --speculative-tokens 3 --json"
"""A prediction with all of its keys but those of images."""
IMAGES = "predict --model gemma-3-4b-it --images 1 --json"


def test_the_page_of_documents_names_every_key(repo_root: Path, own_folder: Path) -> None:
    path = str(example(repo_root, own_folder))
    text = page(repo_root, "json.md")
    simulated = "simulate interference --chunk 512,one-step --ttft-slo-ms 300 --json"
    drafts = "--draft-model eagle --speculative-tokens 3 --acceptance 0.6"
    pools = f"simulate load --rate 5 --requests 10 --output 20 --scheduler disaggregated {drafts} --json"
    documents = {
        "simulations": document(simulated),
        "simulation": document(pools),
        "prediction": document(EVERYTHING.format(path=path)),
        "predictions": document("predict --gpu h100,a100 --json"),
        "solution": document("formula --solve prompt --spike-ms 50 --json"),
        "formula": document("formula --json"),
        "sweep": document("sweep --rate 0.1 --json"),
        "elasticities": document("formula --elasticities --json"),
    }
    for kind, found in documents.items():
        assert found["schema"] == f"costmodel.{kind}/1"
        assert f"costmodel.{kind}/1" in text
        missing = {key for key in keys(found) if key not in ("schema", "rung", "formula") and f"`{key}`" not in text}
        assert not missing
    assert not {key for key in keys(document(IMAGES)) if f"`{key}`" not in text}
    sweep = document("sweep --simulate load --rate 2 --requests 5 --output 5 --prompt 50 --json")
    assert not {key for key in keys(sweep) if f"`{key}`" not in text}
    for kind in ("gpus", "gpu", "models", "model", "fit"):
        assert f"`costmodel.{kind}/1`" in text


def test_keys_of_the_page_are_in_the_document(repo_root: Path, own_folder: Path) -> None:
    path = str(example(repo_root, own_folder))
    found = {*keys(document(EVERYTHING.format(path=path))), *keys(document(IMAGES))}
    table = page(repo_root, "json.md").partition("| key | content |")[2].partition("\n\n")[0]
    words = set(re.findall(r"`([a-z_0-9.]+)`", table))
    assert words - found <= {"roofline", "calibrated"}


def test_the_page_of_models_names_every_preset(repo_root: Path) -> None:
    text = page(repo_root, "models.md")
    for name in costmodel.model_names():
        assert name in text


def test_the_page_of_models_counts_its_rows(repo_root: Path) -> None:
    text = page(repo_root, "models.md")
    for heading in ("Presets", "Read", "Refused"):
        [(said, rows)] = re.findall(rf"^##+ {heading} \((\d+)\)\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
        assert int(said) == len(re.findall(r"^\| [^|]+ \|", rows, re.MULTILINE)) - 1  # but for the heading of the table


def test_the_table_of_start_ups_is_up_to_date(repo_root: Path) -> None:
    made = runpy.run_path(str(repo_root / "docs" / "make_planning_table.py"))["text"]()
    assert made == page(repo_root, "planning.md")
