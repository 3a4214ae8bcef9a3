"""Models that pool on the real engine: what vLLM decides for them, and steps of documents of other lengths and numbers than were fitted.

Tiny models with random weights on a CPU: a BERT and a ModernBERT, whose tokens see both ways, and a Qwen 3 that embeds, whose do not.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodel.building import roofline_parameters
from costmodel.deployment import deploy
from costmodel.equations.step import step_operators
from costmodel.equations.work import Chunk, make_work
from costmodel.memory.blocks import kv_groups

pytestmark = pytest.mark.vllm

COMMON = {
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
    "torch_dtype": "float32",
}
MODELS: dict[str, dict[str, Any]] = {
    "bert": COMMON
    | {"architectures": ["BertModel"], "intermediate_size": 1024, "type_vocab_size": 2, "hidden_act": "gelu"},
    "modernbert": COMMON
    | {
        "architectures": ["ModernBertModel"],
        "intermediate_size": 512,
        "global_attn_every_n_layers": 3,
        "local_attention": 128,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "cls_token_id": 1,
        "eos_token_id": 2,
        "sep_token_id": 2,
    },
    "qwen3": COMMON
    | {
        "architectures": ["Qwen3ForCausalLM"],
        "intermediate_size": 512,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
    },
}
FITTED = {(64, 1), (512, 1), (1024, 1), (32, 32), (64, 16)}
"""Tokens of a document and documents of the steps that the two rates and the overhead are fitted to."""


@pytest.fixture(scope="module")
def measured(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """Every model in one process: its folder, and what was measured."""
    folders = []
    for name, config in MODELS.items():
        folder = tmp_path_factory.mktemp(name)
        (folder / "config.json").write_text(json.dumps({**config, "model_type": name}), encoding="utf-8")
        folders.append(folder)
    (folders[-1] / "1_Pooling").mkdir()
    (folders[-1] / "1_Pooling" / "config.json").write_text('{"pooling_mode_lasttoken": true}', encoding="utf-8")
    module = {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
    (folders[-1] / "modules.json").write_text(json.dumps([module]), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("embedding_check.py")), *map(str, folders)],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(zip(MODELS, zip(folders, json.loads(done.stdout.splitlines()[-1]), strict=True), strict=True))


def sizes(folder: Path, tokens: int, documents: int) -> tuple[float, float]:
    """Return the FLOPs of a step by matrices, and by attention [GFLOP]."""
    parameters = roofline_parameters(deploy(str(folder), "h100", pooling=True))
    operators = step_operators(parameters, make_work([Chunk(tokens)] * documents, windows=parameters.windows))
    apart = [sum(item.flops for item in operators if (item.group == "attention") == which) for which in (False, True)]
    return apart[0] / 1e9, apart[1] / 1e9


def fit(folder: Path, steps: list[list[float]]) -> tuple[Any, list[float]]:
    """Return overhead and seconds per GFLOP of matrices and attention, and the relative errors of the steps held out."""
    times = {(int(tokens), int(documents)): seconds for tokens, documents, seconds in steps}
    rows = {point: np.array([1.0, *sizes(folder, *point)]) for point in times}
    matrix = np.array([rows[point] / times[point] for point in FITTED])
    rates, *_ = np.linalg.lstsq(matrix, np.ones(len(FITTED)), rcond=None)
    return rates, [float(rows[point] @ rates) / times[point] - 1 for point in times if point not in FITTED]


@pytest.mark.parametrize("name", MODELS)
def test_vllm_decides_what_the_model_says(name: str, measured: dict[str, tuple[Path, Any]]) -> None:
    folder, found = measured[name]
    deployment = deploy(str(folder), "h100", pooling=True)
    architecture = deployment.architecture
    assert found["pooling"].casefold() == architecture.pooling
    assert found["chunked"] == architecture.splits_prompts
    assert found["longest"] == architecture.max_positions
    assert found["kv_groups"] == len(kv_groups(deployment)) == (0 if architecture.bidirectional else 1)


@pytest.mark.parametrize("name", MODELS)
def test_held_out_steps_are_predicted(name: str, measured: dict[str, tuple[Path, Any]]) -> None:
    folder, found = measured[name]
    rates, errors = fit(folder, found["steps"])
    print(f"{name}: {[f'{error:+.1%}' for error in errors]}, rates {rates}")
    assert len(errors) == 4
    assert statistics.median(map(abs, errors)) <= 0.15


def test_attention_both_ways_takes_all_pairs(measured: dict[str, tuple[Path, Any]]) -> None:
    """n² pairs take about the time per FLOP of causal n²/2 (1.2 to 1.4 where it was tried); counted as n²/2, they would take twice that."""
    both, causal = (fit(*_steps(measured[name]))[0][2] for name in ("bert", "qwen3"))
    assert 0.7 <= both / causal <= 1.9


def _steps(found: tuple[Path, Any]) -> tuple[Path, list[list[float]]]:
    return found[0], found[1]["steps"]
