"""Every family against parameter counts of its Hugging Face transformers class, on small shapes that no two dimensions share."""

import json
from pathlib import Path

import pytest

from costmodel.architecture.counts import parameter_table, total_parameters
from costmodel.architecture.families import FAMILIES, TOWERS, architecture_from_config

MODELS = json.loads(Path(__file__).with_name("reference_counts.json").read_text(encoding="utf-8"))["models"]

# Families that transformers has no class for: counted against published checkpoints instead (test_published_counts.py).
WITHOUT_CLASS = {
    "deepseek_ref",
    "mimo",
    "minimax_m2",
    "kimi_k2",
    "kimi_k25",
    "kimi_k3",
    "nemotron-nas",
    "qwen3_vl_text",
    "qwen3_vl_moe_text",
}
# Text decoders that are counted within their wrappers.
WRAPPED = {"mllama_text_model", "qwen2_vl_text", "qwen2_5_vl_text"}


@pytest.mark.parametrize("name", MODELS)
def test_total_equals_the_transformers_class(name):
    arch = architecture_from_config(MODELS[name]["config"], name)
    assert total_parameters(arch) == MODELS[name]["count"]


@pytest.mark.parametrize("name", MODELS)
def test_the_table_adds_up_to_the_total(name):
    arch = architecture_from_config(MODELS[name]["config"], name)
    assert sum(row.count for row in parameter_table(arch)) == total_parameters(arch)


def test_every_family_is_covered():
    covered = {model["config"]["model_type"] for model in MODELS.values()}
    assert covered | WITHOUT_CLASS | WRAPPED == {*FAMILIES, *TOWERS}
