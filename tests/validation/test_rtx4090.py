"""The RTX 4090 folder: units, counts, clocks, and what is said when it is not there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from costmodel.errors import InputError
from costmodel.validation.datasets.rtx4090 import Rtx4090, rtx4090


@pytest.fixture(scope="module")
def folder(shared_folder: Path) -> Path:
    return shared_folder / "data" / "rtx4090-llama-3.1-8b"


@pytest.fixture(scope="module")
def data(folder: Path) -> Rtx4090:
    return rtx4090(folder)


def test_counts_and_layers(data: Rtx4090) -> None:
    assert (len(data.dense), len(data.per_sequence), len(data.attention), len(data.requests)) == (1_368, 80, 8_643, 300)
    assert {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"} < set(data.dense.names())
    assert data.per_sequence.names() == ("lm_head", "sampler")
    assert data.attention.chunk.max() == 2048
    mixed = (data.attention.chunk > 0) & (data.attention.decodes > 0)
    assert np.count_nonzero(mixed) > 5000


def test_times_are_seconds(data: Rtx4090) -> None:
    """gate_up_proj is 4096 × 28672: 235 MB of weights take at least 0.233 ms, and 2048 tokens 2.9 ms of 165 TFLOP/s."""
    layer = data.dense.layer("gate_up_proj")
    assert layer.seconds[layer.size == 1] >= 2 * 4096 * 28672 / 1.008e12
    ideal = 2 * 2048 * 4096 * 28672 / 165.2e12
    (full,) = layer.seconds[layer.size == 2048]
    assert 0.95 * ideal < full < 1.5 * ideal


def test_settings(data: Rtx4090) -> None:
    settings = data.settings
    assert (settings.kv_blocks, settings.block_size) == (2_588, 16)
    assert (settings.max_num_seqs, settings.max_num_batched_tokens) == (256, 2_048)
    assert (settings.vllm_version, settings.memory_utilization) == ("0.19.0", 0.9)


def test_requests(data: Rtx4090) -> None:
    requests = data.requests
    assert requests.ttft.mean() == pytest.approx(65.5, abs=0.1)
    assert requests.tpot.mean() == pytest.approx(0.0324, abs=1e-4)
    waited = requests.queued - requests.arrival
    assert waited.min() == pytest.approx(0, abs=1e-6)
    assert waited.max() < 0.25
    assert np.all(requests.scheduled >= requests.queued)
    assert np.all(requests.last_token > requests.first_token)


def test_integer_times_are_read(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy", copy_function=shutil.copyfile)
    line = {"input_toks": 1, "output_toks": 3, "arrival_time": 10, "queued_ts": 1, "scheduled_ts": 2}
    file = copy / "requests.jsonl"
    file.chmod(0o600)
    file.write_text(json.dumps({**line, "first_token_ts": 3, "last_token_ts": 7.0}) + "\n", encoding="utf-8")
    requests = rtx4090(copy).requests
    assert (requests.ttft.tolist(), requests.tpot.tolist(), requests.arrival.tolist()) == ([2.0], [2.0], [1.0])


def test_where_to_get_it() -> None:
    with pytest.raises(
        InputError, match=r"name the folder .* get them from https://github.com/casys-kaist/LLMServingSim"
    ):
        rtx4090()
    with pytest.raises(InputError, match="no such folder"):
        rtx4090("/nowhere/at/all")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("dense.csv", None, "cannot be read"),
        ("dense.csv", "layer,tokens\na,1\n", "missing column or not a number: 'time_us'"),
        ("attention.csv", "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n1,2,3,4,x\n", "not a number"),
        ("requests.jsonl", "{", "not JSON lines"),
        ("meta.json", "{}", "missing or malformed"),
    ],
)
def test_broken_files_are_one_line(folder: Path, tmp_path: Path, name: str, text: str | None, message: str) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy", copy_function=shutil.copyfile)
    (copy / name).unlink()
    if text is not None:
        (copy / name).write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message) as caught:
        rtx4090(copy)
    assert "\n" not in str(caught.value)


def test_unknown_layer(data: Rtx4090) -> None:
    with pytest.raises(InputError, match="did you mean qkv_proj"):
        data.dense.layer("qkv_prj")
