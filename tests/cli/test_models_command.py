"""``costmodel models``: list, show and import, with configurations of the user's own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import costmodel
from costmodel.architecture.counts import active_parameters, parameter_table, total_parameters
from costmodel.architecture.source import preset_config
from tests.cli.runner import document, printed, refusal, run

MODELS = ("Llama-3.1-8B", "gemma-3-12b-it", "gpt-oss-20b", "DeepSeek-V3", "Qwen3-30B-A3B", "Mistral-7B-v0.1")


def test_the_list_has_every_preset() -> None:
    text = printed("models list")
    found = document("models list --json")
    assert found["schema"] == "costmodel.models/1"
    assert [item["name"] for item in found["models"]] == list(costmodel.model_names())
    for item in found["models"]:
        [line] = [line for line in text.splitlines() if line.split()[:1] == [item["name"]]]
        assert f" {item['layers']} " in line
    by_name = {item["name"]: item for item in found["models"]}
    assert by_name["Llama-3.1-8B"]["total_parameters"] == 8_030_261_248
    assert by_name["Llama-3.1-8B"]["kv_bytes_per_token"] == 131_072


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_shown_by_module(name: str) -> None:
    architecture, note = costmodel.load_model(name)
    text, found = printed(f"models show {name}"), document(f"models show {name} --json")
    assert found["schema"] == "costmodel.model/1"
    assert found["total_parameters"] == total_parameters(architecture)
    assert found["active_parameters"] == active_parameters(architecture)
    assert sum(module["parameters"] for module in found["modules"]) == found["total_parameters"]
    assert sum(item["layers"] for item in found["kinds"]) == found["layers"]
    assert f"{total_parameters(architecture):,} parameters" in text
    assert f"{active_parameters(architecture):,} active" in text
    assert f"note: {note}" in text
    for row in parameter_table(architecture, 1):
        [line] = [line for line in text.splitlines() if line.startswith(f"  {row.module}  ")]
        assert f" {row.count:,} " in line
    for item in found["kinds"]:
        assert f"{item['layers']} × {item['kind']}" in text


def test_weights_agree_with_predict() -> None:
    for name in MODELS:
        modules = document(f"models show {name} --json")["modules"]
        predicted = document(f"predict --model {name} --gpu b200 --json")
        assert sum(module["bytes"] for module in modules) == pytest.approx(
            predicted["model"]["weights_bytes"], rel=1e-6
        )


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_divided_among_gpus(name: str) -> None:
    whole, part = document(f"models show {name} --json"), document(f"models show {name} --tp 4 --json")
    assert part["tensor_parallel"] == 4
    assert part["total_parameters"] == whole["total_parameters"]
    full, share = (sum(module["bytes"] for module in item["modules"]) for item in (whole, part))
    assert full / 4 <= share < full
    memory = document(f"predict --model {name} --gpu b200 --tp 4 --json")["memory"]["weights_bytes"]
    # loaded, experts in mxfp4 are padded: 720 of the width at TP 4 to 768, 2,880 to 3,072
    assert share == pytest.approx(memory, rel=0.12 if "gpt-oss" in name else 0.02)
    assert "per GPU at TP 4" in printed(f"models show {name} --tp 4")


def own_model(folder: Path) -> Path:
    """Write a configuration like one that was fine-tuned: a folder with a config.json."""
    folder.mkdir(parents=True)
    config = {**preset_config("Llama-3.2-1B"), "num_hidden_layers": 20}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "path",
    ["my-model", "my-model/config.json", "./my-model", "{absolute}/my-model", "~/my-model", "~/my-model/config.json"],
)
def test_a_model_of_ones_own(path: str, own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_model(own_folder / "my-model")
    monkeypatch.setenv("HOME", str(own_folder))
    path = path.format(absolute=own_folder)
    found = document(["models", "show", path, "--json"])
    assert (found["name"], found["layers"]) == ("my-model", 20)
    predicted = document(["predict", "--model", path, "--json"])
    assert predicted["model"]["total_parameters"] == found["total_parameters"]


def test_a_model_that_was_changed_is_read_again(own_folder: Path) -> None:
    folder = own_model(own_folder / "my-model")
    assert costmodel.predict(model=str(folder)).model.layers == 20
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 24}), encoding="utf-8")
    assert costmodel.predict(model=str(folder)).model.layers == 24


def test_import_keeps_a_preset(own_folder: Path) -> None:
    result = run("models import Llama-3.1-8B kept")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "wrote kept: Llama-3.1-8B, 8,030,261,248 parameters\n"
    assert sorted(path.name for path in (own_folder / "kept").iterdir()) == ["config.json"]
    kept = document("models show kept --json")
    assert kept["total_parameters"] == 8_030_261_248
    same = document("predict --model kept --json")["rungs"]
    assert same == document("predict --json")["rungs"]


def test_import_keeps_a_cached_model_and_its_quantisation(own_folder: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "hf-home" / "hub" / "models--some--model" / "snapshots" / "abc"
    own_model(snapshot)
    quant = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    (snapshot / "hf_quant_config.json").write_text(json.dumps(quant), encoding="utf-8")
    expected = document("predict --model some/model --json")
    assert run("models import some/model kept").exit_code == 0
    shutil.rmtree(tmp_path / "hf-home")
    found = document("predict --model kept --json")
    assert found["rungs"] == expected["rungs"]
    assert found["workload"]["dtype"] == expected["workload"]["dtype"] == "fp8"
    refusal("models show some/model")


def test_import_overwrites_only_when_asked(own_folder: Path) -> None:
    assert run("models import Llama-3.2-1B kept").exit_code == 0
    before = (own_folder / "kept" / "config.json").read_bytes()
    assert "--force" in refusal("models import Llama-3.1-8B kept")
    assert (own_folder / "kept" / "config.json").read_bytes() == before
    assert run("models import Llama-3.1-8B kept --force").exit_code == 0
    assert (own_folder / "kept" / "config.json").read_bytes() != before


def test_import_leaves_nothing_behind_when_refused(own_folder: Path) -> None:
    refusal("models import Llama-3.1-8C kept")
    assert list(own_folder.iterdir()) == []
