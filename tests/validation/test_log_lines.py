"""Logs of vLLM servers as measurements; the lines are those of vLLM 0.32."""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodel.errors import InputError
from costmodel.validation.measurements.log_lines import measurement_from_log, read_log

START = (
    "INFO 11-30 00:55:24 [scheduler.py:307] Chunked prefill is enabled with max_num_batched_tokens=512.",
    "(EngineCore pid=9) INFO 11-30 00:55:24 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='m', "
    "speculative_config=None, dtype=torch.bfloat16, max_seq_len=2048, load_format=auto, tensor_parallel_size=2, pipeline_parallel_size=1, "
    "quantization=None, enforce_eager=False, kv_cache_dtype=auto, device_config=cuda, seed=0, served_model_name=m",
    "(EngineCore pid=9) INFO 11-30 00:55:25 [kv_cache_utils.py:2327] GPU KV cache size: 100,000 tokens, Maximum concurrency for 2,048 "
    "tokens per request: 48.83x",
)


def line(
    index: int, second: int, prompts: int, new: int, decodes: int, ms: float, usage: float, prefix: str = ""
) -> str:
    return (
        f"{prefix}(APIServer pid=7) INFO 11-30 00:56:{second:02} [loggers.py:199] Engine 000: Iteration({index}): {prompts} context "
        f"requests, {new} context tokens, {decodes} generation requests, {decodes} generation tokens, iteration elapsed time: {ms:.2f} ms, "
        f"GPU KV cache usage: {usage:.1f}%"
    )


def written(folder: Path, *lines: str, start: tuple[str, ...] = START) -> Path:
    path = folder / "server.log"
    path.write_text("\n".join((*start, *lines)) + "\n", encoding="utf-8")
    return path


def read(path: Path, **named: object):  # type: ignore[no-untyped-def]
    asked = {"gpu": None, "dtype": None, "kv_dtype": None, "tensor_parallel": 1, "command": "costmodel measure"} | named
    return measurement_from_log(path, "Llama-3.2-1B", **asked)  # type: ignore[arg-type]


def stamped(index: int, ms: float) -> str:
    """Return the prefix of ``docker logs -t`` of a line that came at a time [ms]."""
    return f"2026-11-30T00:56:{ms / 1e3:012.9f}Z "


def test_steps_are_those_of_the_lines(tmp_path: Path) -> None:
    lines = [
        line(0, 0, 1, 400, 0, 30.0, 0.4),
        *(line(index, index // 2, 0, 0, 4, 500.0, 2.0) for index in range(1, 9)),
        line(9, 5, 1, 508, 4, 900.0, 2.5),
        line(10, 6, 1, 100, 4, 600.0, 2.6),
        line(11, 6, 2, 100, 4, 600.0, 2.6),
    ]
    found = read(written(tmp_path, *lines), gpu="h100")
    assert (found.source, found.engine.version, found.engine.flags["enforce_eager"]) == ("log", "0.32.0", "False")
    assert (found.machine.profile, found.machine.count) == ("h100-sxm", 2)
    assert (found.model.dtype, found.model.kv_dtype, found.model.config["model_type"]) == ("bf16", None, "llama")
    prompt, decode, first, second = found.steps
    assert (prompt.chunks, prompt.decodes, prompt.seconds) == (((400, 0),), (), 0.03)
    assert (decode.chunks, decode.seconds, decode.repeats) == ((), 0.5, 8)
    assert decode.decodes == (499,) * 4
    assert (first.chunks, second.chunks) == (
        ((508, 0),),
        ((100, 508),),
    )  # the first filled the budget: the prompt goes on
    assert first.decodes == (497,) * 4
    assert any("several prompts" in note for note in found.notes)
    assert any("sum up to 102 %" in note for note in found.notes)
    assert all(step.purpose == "served" for step in found.steps)


@pytest.mark.parametrize(
    ("steps", "known"),
    [  # prompts, new tokens, sequences that decode; of steps with one prompt, what it had in the cache
        ([(1, 508, 4), (1, 508, 4), (1, 100, 4)], [0, 508, 1016]),
        ([(3, 508, 4), (1, 508, 4), (1, 100, 4), (1, 90, 4)], [None, None, 0]),
        ([(3, 508, 4), (1, 100, 7)], [0]),  # all three decode
        ([(3, 508, 4), (1, 100, 6)], [None]),
        ([(1, 508, 4), (1, 100, 5)], [0, 0]),  # it ended with the budget
        ([(1, 400, 4), (1, 100, 4)], [0, 0]),
        ([(1, 508, 4), None, (1, 100, 4), (1, 90, 4)], [0, None, 0]),
    ],
)
def test_what_a_prompt_had_before_is_told_or_the_step_is_left_out(
    tmp_path: Path, steps: list[tuple[int, int, int] | None], known: list[int | None]
) -> None:
    decode = (0, 0, 4)
    lines = [line(number, 0, *step, 5.0, 9.0) for number, step in enumerate([decode, *steps]) if step is not None]
    found = read(written(tmp_path, *lines))
    assert [step.chunks[0][1] for step in found.steps if step.chunks] == [each for each in known if each is not None]
    said = f"steps left out: {known.count(None)}, for a prompt whose beginning the log does not tell"
    assert (said in found.notes) == (None in known)


def test_what_the_prefix_cache_gave_is_said_to_be_unknown(tmp_path: Path) -> None:
    prompts = [line(number, 0, 1, 100, 4, 5.0, 9.0) for number in range(2)]
    off = tuple(each.replace("seed=0", "enable_prefix_caching=False, seed=0") for each in START)
    for lines, start, said in (
        (prompts, START, True),
        (prompts, off, False),
        ([line(0, 0, 0, 0, 4, 5.0, 2.0)], START, False),
    ):
        notes = read(written(tmp_path, *lines, start=start)).notes
        assert any("prefix cache" in note for note in notes) == said


def test_stamps_with_fractions_are_the_times(tmp_path: Path) -> None:
    lines = [
        line(0, 0, 1, 100, 0, 0.2, 0.1, stamped(0, 0)),
        line(1, 0, 0, 0, 1, 0.2, 0.1, stamped(1, 20)),
        line(2, 0, 0, 0, 1, 0.2, 0.1, stamped(2, 31)),
        line(4, 0, 0, 0, 1, 0.2, 0.1, stamped(4, 100)),
        line(5, 0, 1, 50, 1, 0.2, 0.2, stamped(5, 150)),
    ]
    found = read(written(tmp_path, *lines))
    assert sorted(step.seconds for step in found.steps) == pytest.approx([0.0155, 0.05], abs=1e-6)
    assert any("between two lines" in note for note in found.notes)
    assert "steps left out: 2, for an engine that may have waited before" in found.notes


def test_elapsed_times_that_are_none_are_refused(tmp_path: Path) -> None:
    lines = [line(index, index // 5, 0, 0, 4, 0.2, 2.0) for index in range(100)]
    with pytest.raises(InputError, match=r"busy seconds sum up to 0.02 s.*docker logs -t"):
        read(written(tmp_path, *lines))


def test_a_short_log_says_that_times_are_unchecked(tmp_path: Path) -> None:
    found = read(written(tmp_path, line(0, 0, 0, 0, 4, 5.0, 2.0)))
    assert any("could not be checked" in note for note in found.notes)


def test_one_engine_of_several_is_read(tmp_path: Path) -> None:
    other = (line(each, 0, 0, 0, 2, 5.0, 1.0).replace("Engine 000", "Engine 001") for each in (0, 1))
    lines = [line(0, 0, 0, 0, 1, 5.0, 1.0), *other]
    assert [step.decodes for step in read_log(written(tmp_path, *lines)).steps] == [2, 2]


def test_every_fifth_kind_is_held_out(tmp_path: Path) -> None:
    found = read(written(tmp_path, *(line(each, 0, 0, 0, each + 1, 5.0, 2.0) for each in range(20))))
    assert [step.held_out for step in found.steps] == [place % 5 == 4 for place in range(20)]


def test_dummy_steps_are_not_counted(tmp_path: Path) -> None:
    dummy = line(0, 0, 0, 0, 0, 5.0, 0.0).replace(" ms,", " ms (dummy),")
    assert len(read_log(written(tmp_path, dummy, line(1, 0, 0, 0, 2, 5.0, 1.0))).steps) == 1


@pytest.mark.parametrize(
    ("lines", "start", "reason"),
    [
        ((), START, "--enable-logging-iteration-details"),
        ((line(0, 0, 0, 0, 4, 5.0, 2.0),), (), "size of the KV cache"),
        ((line(0, 0, 2, 50, 4, 5.0, 2.0),), START, "several prompts"),
    ],
)
def test_logs_that_say_too_little_are_refused(
    tmp_path: Path, lines: tuple[str, ...], start: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        read(written(tmp_path, *lines, start=start))


def test_a_log_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.log"):
        read(tmp_path / "none.log")
