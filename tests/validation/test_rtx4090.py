"""The RTX 4090 folder: units, counts, clocks, and what is said when it is not there."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from costmodel.errors import InputError
from costmodel.validation.datasets.rtx4090 import FILES, Rtx4090, rtx4090

ATTENTION = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n"
REQUEST = {
    "input_toks": 1, "output_toks": 3, "arrival_time": 10, "queued_ts": 1, "scheduled_ts": 2, "first_token_ts": 3,
    "last_token_ts": 7.0,
}  # fmt: skip


def request(**changed: float | None) -> str:
    """Return a line of requests.jsonl."""
    return json.dumps(REQUEST | changed) + "\n"


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
    file = copy / "requests.jsonl"
    file.chmod(0o600)
    file.write_text(request(), encoding="utf-8")
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
        ("dense.csv", None, "dense.csv: no such file"),
        ("dense.csv", "", "dense.csv: no column 'layer'; it is empty"),
        ("dense.csv", "layer,tokens\na,1\n", "no column 'time_us'; its columns are 'layer, tokens'"),
        ("dense.csv", "layer,tokens,time_us\n", "no rows below"),
        ("dense.csv", "layer,tokens,time_us\na,1,2\n", "no layer 'qkv_proj'; it has a"),
        ("dense.csv", "layer,tokens,time_us\na\x00,1\n", "line 2: time_us is missing"),
        *(
            ("dense.csv", f"layer,tokens,time_us\na,1,1\na,{size},1\n", f"line 3: tokens must be .* not {shown!r}")
            for size, shown in (
                ("0", "0"),
                ("-5", "-5"),
                ("nan", "nan"),
                ("inf", "inf"),
                ("1e300", "1e300"),
                ("1.5", "1.5"),
            )
        ),
        ("per_sequence.csv", "layer,sequences,time_us\nlm_head,nan,1\n", "line 2: sequences must be a finite number"),
        *(
            ("attention.csv", f"{ATTENTION}1,2,3,4,{time}\n", f"attention.csv, line 2: time_us must be .* not '{time}'")
            for time in ("x", "nan", "inf", "0", "-1", "1e300")
        ),
        ("attention.csv", ATTENTION, "no rows below"),
        ("attention.csv", f"{ATTENTION}0,9,0,9,1\n", "line 2: neither prefill_chunk nor n_decode is above 0"),
        ("requests.jsonl", "", "requests.jsonl: no requests in its 0 lines"),
        ("requests.jsonl", "{", "requests.jsonl, line 1: not JSON"),
        ("requests.jsonl", "\n[1]", "line 2: a JSON list, not an object"),
        ("requests.jsonl", request(output_toks=0), "line 1: output_toks must be a whole number from 1"),
        ("requests.jsonl", request(output_toks=-5), "line 1: output_toks must be a whole number from 1"),
        ("requests.jsonl", request(input_toks=None), "line 1: input_toks is missing"),
        ("requests.jsonl", request(queued_ts=float("nan")), "line 1: queued_ts must be a finite number, not nan"),
        ("requests.jsonl", request(arrival_time=1e300), "line 1: arrival_time must be at most"),
        ("requests.jsonl", request(last_token_ts=0), "line 1: .* are not in this order"),
        ("meta.json", "{}", "meta.json: model is missing"),
        ("meta.json", "{", "meta.json: not JSON"),
        (
            "meta.json",
            '{"model": "m", "vllm_version": "1", "kv_cache": {"num_gpu_blocks": 1e999}}',
            "num_gpu_blocks must be a whole",
        ),
    ],
)
def test_broken_files_are_one_line(folder: Path, tmp_path: Path, name: str, text: str | None, message: str) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy", copy_function=shutil.copyfile)
    (copy / name).unlink()
    if text is not None:
        (copy / name).write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message) as caught:
        rtx4090(copy)
    said = str(caught.value)
    assert "\n" not in said
    assert said.count("RTX 4090 measurements") == 1
    assert name in said


@pytest.mark.parametrize("kind", ["folder", "pipe", "binary"])
def test_what_is_no_text_file_is_said_once(folder: Path, tmp_path: Path, kind: str) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy", copy_function=shutil.copyfile)
    for name in FILES:
        (copy / name).rename(copy / "kept")
        if kind == "folder":
            (copy / name).mkdir()
        elif kind == "pipe":
            os.mkfifo(copy / name)
        else:
            (copy / name).write_bytes(b"\xff\xfe\x00")
        with pytest.raises(InputError, match=f"{name}: (is|cannot)") as caught:
            rtx4090(copy)
        assert str(caught.value).count("RTX 4090 measurements") == 1
        (copy / name).rmdir() if kind == "folder" else (copy / name).unlink()
        (copy / "kept").rename(copy / name)


def test_a_home_folder_is_found(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(folder, tmp_path / "copy", copy_function=shutil.copyfile)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(rtx4090("~/copy").requests) == 300
    with pytest.raises(InputError, match="no such folder"):
        rtx4090("~nosuchuser/x")


def test_unknown_layer(data: Rtx4090) -> None:
    with pytest.raises(InputError, match="did you mean qkv_proj"):
        data.dense.layer("qkv_prj")
