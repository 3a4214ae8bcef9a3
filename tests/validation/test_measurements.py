"""Files of measurements: written line by line, read back as medians, usable after any end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from costmodel.errors import InputError
from costmodel.validation.measurements.files import Sample, Writer, read_measurement, read_samples
from costmodel.validation.measurements.types import Engine, Header, Machine, Model

HEADER = Header(
    source="in-process",
    engine=Engine(name="vllm", version="0.32.0", flags={"enforce_eager": True}),
    machine=Machine(profile=None, device="a CPU", threads=1),
    model=Model(name="tiny", config={"hidden_size": 64}, dtype="fp32", random_weights=True),
    clock="cpu",
    date="2026-11-29T12:00:00+00:00",
    command="costmodel measure tiny",
)
DECODE = Sample((), (10, 20), 0.010, "decode")
MIXED = Sample(((100, 0),), (10,), 0.050, "mixed", held_out=True)


def written(path: Path, *samples: Sample, complete: bool = False) -> Path:
    with Writer(path, HEADER) as file:
        for sample in samples:
            file.add(sample)
        if complete:
            file.complete()
    return path


def test_repeats_become_a_median_with_its_spread(tmp_path: Path) -> None:
    samples = [Sample((), (10, 20), seconds, "decode") for seconds in (0.010, 0.030, 0.012)]
    found = read_measurement(written(tmp_path / "m.jsonl", *samples, MIXED, complete=True))
    assert found.complete
    assert found.engine == HEADER.engine
    decode, mixed = found.steps
    assert (decode.seconds, decode.repeats) == (0.012, 3)
    assert decode.spread == pytest.approx(0.002)
    assert mixed.held_out
    assert mixed.tokens == 101


def test_a_document_is_read_as_well(tmp_path: Path) -> None:
    found = read_measurement(written(tmp_path / "m.jsonl", DECODE, MIXED))
    (tmp_path / "m.json").write_text(json.dumps(found.model_dump(by_alias=True, mode="json")))
    assert read_measurement(tmp_path / "m.json") == found


@pytest.mark.parametrize("lost", range(1, 60, 7))
def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path, lost: int) -> None:
    path = written(tmp_path / "m.jsonl", DECODE, MIXED)
    path.write_bytes(path.read_bytes()[:-lost])
    found = read_measurement(path)
    assert not found.complete
    assert [step.purpose for step in found.steps] == ["decode"]
    assert any("cut off" in note for note in found.notes)


def test_going_on_replaces_the_cut_off_line(tmp_path: Path) -> None:
    path = written(tmp_path / "m.jsonl", DECODE, MIXED)
    path.write_bytes(path.read_bytes()[:-5])
    with Writer(path, None) as file:
        file.add(DECODE)
        file.complete()
    assert read_samples(path) == [DECODE, DECODE]
    assert read_measurement(path).complete


def test_no_file_is_replaced(tmp_path: Path) -> None:
    path = written(tmp_path / "m.jsonl", DECODE)
    with pytest.raises(InputError, match="exists; use --resume"):
        Writer(path, HEADER)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty or has no whole line"),
        ("hello\n", "line 1: is no header"),
        ('{"schema": "costmodel.prediction/1"}\n', "line 1: is no header"),
    ],
)
def test_what_is_no_measurement_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "m.jsonl").write_text(text)
    with pytest.raises(InputError, match=reason):
        read_measurement(tmp_path / "m.jsonl")


@pytest.mark.parametrize(
    "line",
    ["[1]", "{}", '{"seconds": -1}', '{"seconds": 1, "decodes": [-1]}', '{"seconds": NaN}', '{"secnds": 1}', "{"],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = written(tmp_path / "m.jsonl", DECODE)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(InputError, match="line 3"):
        read_measurement(path)


def test_other_files_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name in ("binary", "missing", "."):
        with pytest.raises(InputError) as caught:
            read_measurement(tmp_path / name)
        assert "\n" not in str(caught.value)
