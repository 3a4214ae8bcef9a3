"""Traces: every format, what is wrong with a file and where, and what is left out."""

from __future__ import annotations

import gzip
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from costmodel.hardware.errors import InputError
from costmodel.simulation.requests import Request
from costmodel.simulation.trace_rows import BENCH_KEYS, CSV_FORMS, CSV_OPTIONAL, HASHED_KEYS, RECORD_KEYS
from costmodel.simulation.traces import FORMS, NO_OUTPUT, NO_PROMPT, Trace, read_trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:01+00:00,2399,6
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118,GPT-4,417,276,693,API log
"""
OWN = """arrival_s,prompt_tokens,output_tokens
10,100,7
10.5,200,8
"""
MOONCAKE = """{"timestamp": 0, "input_length": 1030, "output_length": 52, "hash_ids": [46, 47, 48]}
{"timestamp": 3000, "input_length": 1024, "output_length": 26, "hash_ids": [46, 49]}
"""
TIMED = """{"chat_id": 1, "timestamp": 61.114, "input_length": 40, "output_length": 132, "hash_ids": [7, 8, 9]}
{"chat_id": 2, "timestamp": 61.614, "input_length": 33, "output_length": 1, "hash_ids": [7, 8, 10]}
"""
RECORDS = """{"request_id": "bench-0", "input_toks": 2358, "output_toks": 531, "arrival_time": 1787267980.0}
{"request_id": "bench-1", "input_toks": 1034, "output_toks": 769, "arrival_time": 1787267980.25}
"""
BENCH: dict[str, Any] = {
    "date": "20260101-000000",
    "max_concurrency": None,
    "request_throughput": 2.0,
    "input_lens": [100, 200, 300],
    "output_lens": [10, 0, 30],
    "start_times": [5000.0, 0.0, 5001.5],
    "errors": ["", "timed out", ""],
}


def written(folder: Path, content: str | bytes, name: str = "trace") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read(folder: Path, content: str | bytes, **options: Any) -> Trace:
    return read_trace(written(folder, content), **options)


def refusal(folder: Path, content: str | bytes, **options: Any) -> str:
    """Return what is said of a trace that cannot be read, without its path."""
    path = written(folder, content)
    with pytest.raises(InputError) as error:
        read_trace(path, **options)
    text = str(error.value)
    assert "\n" not in text
    assert text.startswith(f"trace {path}")
    return text.removeprefix(f"trace {path}").lstrip(":, ")


def short(trace: Trace) -> list[tuple[float, int, int]]:
    return [(request.arrival, request.prompt, request.output) for request in trace.requests]


@pytest.mark.parametrize(
    ("content", "form", "requests"),
    [
        (AZURE, "azure", [(0, 374, 44), (4.314579, 396, 109)]),
        (AZURE_2024, "azure", [(0, 2162, 5), (0.99007, 2399, 6)]),
        (BURSTGPT, "burstgpt", [(0, 472, 18), (113, 417, 276)]),
        (OWN, "csv", [(0, 100, 7), (0.5, 200, 8)]),
        (MOONCAKE, "mooncake", [(0, 1030, 52), (3, 1024, 26)]),
        (TIMED, "timed-trace", [(0, 40, 132), (0.5, 33, 1)]),
        (RECORDS, "records", [(0, 2358, 531), (0.25, 1034, 769)]),
        (json.dumps(BENCH), "vllm-bench", [(0, 100, 10), (1.5, 300, 30)]),
        (json.dumps(BENCH, indent=1), "vllm-bench", [(0, 100, 10), (1.5, 300, 30)]),
    ],
)
def test_every_format_is_told_from_its_content(
    tmp_path: Path, content: str, form: str, requests: list[tuple[float, int, int]]
) -> None:
    variants = [
        content,
        content.rstrip(),
        content.replace("\n", "\r\n"),
        "\n\n" + content,
        content + "\n \n",
        "\ufeff" + content,
    ]
    for variant in variants:
        trace = read(tmp_path, variant)
        assert trace.form == form
        assert short(trace) == [pytest.approx(request) for request in requests]
        assert {request.group for request in trace.requests} == {"request"}
        assert read(tmp_path, variant, form=form) == trace
        assert read(tmp_path, gzip.compress(variant.encode())) == trace


def test_formats_are_all_tested() -> None:
    assert FORMS == ("azure", "burstgpt", "csv", "mooncake", "timed-trace", "records", "vllm-bench")


@pytest.mark.parametrize("arrival", ["arrival_s", "arrival_time", "arrival", "start_time", "arrived_at"])
@pytest.mark.parametrize(
    ("prompt", "output"),
    [("prompt_len", "output_len"), ("prompt_tokens", "completion_tokens"), ("input_len", "output_tokens")],
)
def test_records_have_one_of_the_usual_names(tmp_path: Path, arrival: str, prompt: str, output: str) -> None:
    lines = [json.dumps({arrival: time, prompt: 5, output: 6, "text": "…"}) for time in (1, 2.5)]
    assert short(read(tmp_path, "\n".join(lines))) == [(0, 5, 6), (1.5, 5, 6)]


def test_hashes_become_prefixes(tmp_path: Path) -> None:
    first, second = read(tmp_path, MOONCAKE).requests
    assert (first.prefix, second.prefix) == ((46, 47, 48), (46, 49))
    assert first.prefix_block == 512
    assert {request.prefix_block for request in read(tmp_path, TIMED).requests} == {16}


def test_more_hashes_than_the_prompt_has_blocks_are_cut(tmp_path: Path) -> None:
    trace = read(tmp_path, TIMED, form="mooncake")
    assert [request.prefix for request in trace.requests] == [(7,), (7,)]
    assert trace.requests[1].arrival == pytest.approx(0.0005)
    assert trace.notes == ("2 requests name more prefix blocks than their prompts fill; cut to the prompt",)


def test_milliseconds_or_seconds_is_not_guessed(tmp_path: Path) -> None:
    line = '{"timestamp": 3, "input_length": 9, "output_length": 1, "hash_ids": [1]}\n'
    message = (
        "cannot tell whether timestamp is in milliseconds, with hash_ids of 512 tokens, or in seconds, with 16; "
        "say which: --format mooncake or --format timed-trace (form=… in Python)"
    )
    assert refusal(tmp_path, line) == message
    assert refusal(tmp_path, MOONCAKE + TIMED) == message
    assert refusal(tmp_path, line.replace(', "hash_ids": [1]', "")) == message
    assert read(tmp_path, line.replace("3", "3.5", 1)).form == "timed-trace"
    assert read(tmp_path, line + MOONCAKE).form == "mooncake"  # a later line tells
    assert read(tmp_path, line, form="mooncake").form == "mooncake"


def test_own_tables_may_tell_priority_group_and_prefix(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        "Prompt_Tokens, arrival_s ,output_tokens,priority,group,prefix,prefix_block,user\n"
        '2000,1,5,-2,"chat, paid",7,1500,x\n'
        "64,2,5,,,1 2 3,,y\n",
        group="mine",
    )
    assert trace.requests == (
        Request(0.0, 2000, 5, "chat, paid", -2, (7,), 1500),
        Request(1.0, 64, 5, "mine", 0, (1, 2, 3), 16),
    )
    assert trace.notes == ("columns not read: user",)


def test_groups_are_named(tmp_path: Path) -> None:
    assert {request.group for request in read(tmp_path, AZURE, group="chat").requests} == {"chat"}


def test_arrivals_are_sorted_and_say_so(tmp_path: Path) -> None:
    trace = read(tmp_path, OWN + "9,300,1\n10.5,400,1\n10,500,1\n")
    assert short(trace) == [(0, 300, 1), (1, 100, 7), (1, 500, 1), (1.5, 200, 8), (1.5, 400, 1)]
    assert trace.notes == ("2 arrivals earlier than the one above them; sorted",)


def test_speed_divides_and_limit_stops(tmp_path: Path) -> None:
    assert short(read(tmp_path, OWN, speed=2)) == [(0, 100, 7), (0.25, 200, 8)]
    assert short(read(tmp_path, OWN + "x,y,z\n", limit=2)) == short(read(tmp_path, OWN))
    assert short(read(tmp_path, BURSTGPT, limit=2)) == short(read(tmp_path, BURSTGPT))  # rejected ones do not count


def test_requests_that_an_engine_refuses_are_counted(tmp_path: Path) -> None:
    trace = read(tmp_path, OWN + "11,0,5\n12,5,0\n13,0,0\n14,10000000000,1\n")
    assert trace.left_out == {NO_PROMPT: 2, NO_OUTPUT: 1}
    assert short(trace)[-1] == (4, 10**10, 1)  # the engine knows its limits
    assert read(tmp_path, BURSTGPT).left_out == {NO_OUTPUT: 1}
    assert read(tmp_path, json.dumps(BENCH)).left_out == {NO_OUTPUT: 1}
    assert read(tmp_path, OWN).left_out == {}


def test_whole_numbers_may_be_written_as_floats(tmp_path: Path) -> None:
    assert short(read(tmp_path, OWN + "1e1,3.0,4e2\n"))[1] == (0, 3, 400)
    assert read(tmp_path, MOONCAKE.replace("1030", "1030.0")) == read(tmp_path, MOONCAKE)


def test_a_benchmark_with_a_limit_of_clients_says_so(tmp_path: Path) -> None:
    trace = read(tmp_path, json.dumps({**BENCH, "max_concurrency": 32}))
    assert trace.notes == ("max_concurrency 32 held arrivals back: they follow the pace of that server",)


def test_a_last_line_without_an_end_is_noted(tmp_path: Path) -> None:
    whole = read(tmp_path, OWN + "11,20,20\n")
    assert whole.notes == ()
    cut = read(tmp_path, OWN + "11,20,2")
    assert cut.requests[-1].output == 2
    assert cut.notes == (NO_END,)
    assert read(tmp_path, OWN + "11,20,2", limit=1).notes == ()  # not read that far
    assert read(tmp_path, MOONCAKE.rstrip()).notes == ()  # the bracket at its end says that it is whole


def test_any_number_of_empty_lines_may_come_first(tmp_path: Path) -> None:
    assert read(tmp_path, "\n" * 1000 + OWN) == read(tmp_path, OWN)
    assert refusal(tmp_path, "\n" * 1000 + OWN + "11,-5,6\n").startswith("line 1004: ")


def test_a_line_without_end_is_not_read_to_the_end_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("costmodel.simulation.trace_files.MAX_LINE", 1 << 20)
    too_long = b"a" * ((1 << 20) + 1)
    for content in (too_long, gzip.compress(too_long)):
        assert refusal(tmp_path, content) == "line 1: longer than 1 MiB; a trace has one request a line"
    with pytest.raises(InputError, match="line 1: longer than 1 MiB"):
        read_trace("/dev/zero")


NO_END = "the last line has no line end: if the file was cut off, the last number may be, too"
CSV_NAMES = "the first line names the columns, arrival_s,prompt_tokens,output_tokens among them"
KNOWN = (
    "known: CSV with TIMESTAMP,ContextTokens,GeneratedTokens, or Timestamp,Request tokens,Response tokens, or "
    "arrival_s,prompt_tokens,output_tokens, or JSON lines with timestamp, input_length, output_length"
)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty; one request a line is expected"),
        (" \n\n", "is empty; one request a line is expected"),
        (gzip.compress(b"", mtime=0), "is empty; one request a line is expected"),
        (OWN.partition("\n")[0], "no request that an engine would take (nothing after the header)"),
        (
            "arrival_s,prompt_tokens,output_tokens\n0,0,1\n0,1,0\n",
            "no request that an engine would take (1 × prompt of 0 tokens, 1 × answer of 0 tokens)",
        ),
        ("a,b,c\n1,2,3\n", f"line 1: no known format with the header 'a,b,c'; {KNOWN}"),
        ("1,2,3\n", f"line 1: no known format with the header '1,2,3'; {KNOWN}"),
        (
            OWN.replace(",", ";"),
            f"line 1: no known format with the header 'arrival_s;prompt_tokens;output_tokens'; {KNOWN}",
        ),
        (
            "arrival_s,prompt_tokens\n1,2\n",
            f"line 1: no column output_tokens; {CSV_NAMES}, not 'arrival_s,prompt_tokens'",
        ),
        (OWN + "11,5\n", "line 4: 2 fields, where the header has 3; is the line cut off?"),
        (OWN + "11,5,6,7\n", "line 4: 4 fields, where the header has 3; is the line cut off?"),
        (OWN + "\n11,-5,6\n", "line 5: prompt_tokens must be at least 0, not -5"),
        (OWN + "11,5,nan\n", "line 4: output_tokens must be a whole number of tokens, not 'nan'"),
        (OWN + "11,5,inf\n", "line 4: output_tokens must be a whole number of tokens, not 'inf'"),
        (OWN + "11,5,\n", "line 4: output_tokens must be a whole number of tokens, not ''"),
        (OWN + "11,5.5,1\n", "line 4: prompt_tokens must be a whole number of tokens, not '5.5'"),
        (OWN + "11,many,1\n", "line 4: prompt_tokens must be a whole number of tokens, not 'many'"),
        (
            OWN + "11,9999999999999,1\n",
            "line 4: prompt_tokens must be a number of tokens up to 1e+12, not 9999999999999",
        ),
        (OWN + "11,1_0,1\n", "line 4: prompt_tokens must be a whole number of tokens, not '1_0'"),
        (OWN + "1_1,1,1\n", "line 4: arrival_s must be a number, not '1_1'"),
        (
            "arrival_s,prompt_tokens,Output_Tokens,output_tokens\n0,1,2,3\n",
            "line 1: column output_tokens is there 2 times; leave the right one",
        ),
        (
            MOONCAKE + '{"timestamp": 4, "input_length": 5, "input_length": 50, "output_length": 6}\n',
            "line 3: key 'input_length' is there 2 times in one object; leave the right one",
        ),
        (
            json.dumps(BENCH).replace('"date"', '"input_lens": [1], "date"'),
            "line 1: key 'input_lens' is there 2 times in one object; leave the right one",
        ),
        (OWN + "noon,5,1\n", "line 4: arrival_s must be a number, not 'noon'"),
        (OWN + "nan,5,1\n", "line 4: arrival_s must be a number, not nan"),
        (OWN + "-1,5,1\n", "line 4: arrival_s must be at least 0, not -1.0"),
        (
            OWN + "1.7e12,5,1\n",
            "line 4: arrival_s 1700000000000.0 is too late for its unit; is it in milliseconds or nanoseconds?",
        ),
        (
            AZURE + "16 Nov 2023,1,1\n",
            "line 4: TIMESTAMP must be a date like 2023-11-16 18:15:46.6805900, not '16 Nov 2023'",
        ),
        (AZURE + "2023-11-16 18:1", "line 4: 1 fields, where the header has 3; is the line cut off?"),
        (OWN.encode() + b"11,5,\xff\n", "line 4: byte 6 is not UTF-8; save the trace as UTF-8 text, plain or gzip"),
        (OWN.encode("utf-16"), "line 1: byte 1 is not UTF-8; save the trace as UTF-8 text, plain or gzip"),
        (b"PK\x03\x04\x89", "line 1: byte 5 is not UTF-8; save the trace as UTF-8 text, plain or gzip"),
        (MOONCAKE + '{"timestamp": 4, "inp', 'line 3: not JSON (cut off?): \'{"timestamp": 4, "inp\''),
        ('{"timestamp": 4, "inp', 'line 1: not JSON (cut off?): \'{"timestamp": 4, "inp\''),
        (MOONCAKE + "[" * 100_000, "line 3: not JSON (cut off?): '" + "[" * 56 + "..."),
        (MOONCAKE + "17\n", "line 3: one JSON object a line, not 17"),
        (MOONCAKE + '{"timestamp": 4}\n', "line 3: no input_length, but 'timestamp'; is the format another?"),
        (MOONCAKE.replace("1024", '"long"'), "line 2: input_length must be a whole number of tokens, not 'long'"),
        (MOONCAKE.replace("1024", "true"), "line 2: input_length must be a whole number of tokens, not True"),
        (MOONCAKE.replace("1024", "NaN"), "line 2: input_length must be a whole number of tokens, not nan"),
        (MOONCAKE.replace("26", "-26"), "line 2: output_length must be at least 0, not -26"),
        (
            MOONCAKE.replace("3000", "Infinity"),
            "line 2: timestamp inf is too late for its unit; is it in milliseconds or nanoseconds?",
        ),
        (MOONCAKE.replace("3000", "NaN"), "line 2: timestamp must be a number, not nan"),
        (MOONCAKE.replace("3000", "-3"), "line 2: timestamp must be at least 0, not -3"),
        (MOONCAKE.replace("3000", "null"), "line 2: timestamp must be a number, not None"),
        (MOONCAKE.replace("[46, 49]", '["a"]'), "line 2: hash_ids must be a list of whole numbers, not ['a']"),
        (MOONCAKE.replace("[46, 49]", "5"), "line 2: hash_ids must be a list of whole numbers, not 5"),
        (
            RECORDS.replace('"output_toks": 769, ', ""),
            "line 2: no output_toks, but 'request_id, input_toks, arrival_time'; is the format another?",
        ),
        ('{"a": 1}\n', f"line 1: no known format with the keys 'a'; {KNOWN}"),
        (
            '{"prompt": "What is the capital of India?", "output_tokens": 10}\n',
            "line 1: texts without arrivals (a dataset for `vllm bench serve`), where a trace has arrivals and numbers of "
            "tokens; write a CSV with arrival_s,prompt_tokens,output_tokens",
        ),
        (
            '[{"conversations": []}]\n',
            "line 1: a JSON list, as of ShareGPT, which has texts and no arrivals; a trace has one request a line: "
            "arrival_s,prompt_tokens,output_tokens",
        ),
        (
            json.dumps({key: value for key, value in BENCH.items() if key != "start_times"}),
            "no list start_times; write it with `vllm bench serve --save-result --save-detailed`",
        ),
        (
            json.dumps({**BENCH, "input_lens": [1]}),
            "lists of different lengths (3 start_times, 1 input_lens, 3 output_lens); is the file whole?",
        ),
        (json.dumps({**BENCH, "input_lens": [1, 2, -3]}), "request 3: input_lens must be at least 0, not -3"),
        (json.dumps({**BENCH, "start_times": [1, 2, None]}), "request 3: start_times must be a number, not None"),
        (
            json.dumps(BENCH) + "\n" + json.dumps(BENCH),
            "more than one result; keep one a file (vllm bench without --append-result)",
        ),
        ("{\n", "line 2: not JSON (Expecting property name enclosed in double quotes); is the file whole?"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, content: str | bytes, message: str) -> None:
    assert refusal(tmp_path, content) == message


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("high,,,", "priority must be a whole number, not 'high'"),
        ("1_0,,,", "priority must be a whole number, not '1_0'"),
        (f"{10**30},,,", f"priority must be within ±(2⁶³ − 1), not {10**30}"),
        (f"{-(2**63)},,,", f"priority must be within ±(2⁶³ − 1), not {-(2**63)}"),
        (",,1_0,", "prefix must be whole numbers with spaces between, not '1_0'"),
        (",,a b,", "prefix must be whole numbers with spaces between, not 'a b'"),
        (",,1,0", "prefix_block must be at least 1 token, not 0"),
        (",,1,x", "prefix_block must be a whole number of tokens, not 'x'"),
    ],
)
def test_wrong_optional_columns(tmp_path: Path, row: str, message: str) -> None:
    header = "arrival_s,prompt_tokens,output_tokens,priority,group,prefix,prefix_block"
    assert refusal(tmp_path, f"{header}\n0,1,1,{row}\n") == f"line 2: {message}"


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("azure", "line 1: no column TIMESTAMP or ContextTokens or GeneratedTokens; the first line names the columns"),
        ("mooncake", "line 1: not JSON (cut off?): 'arrival_s,prompt_tokens,output_tokens'"),
        ("records", "line 1: not JSON (cut off?)"),
        ("vllm-bench", "line 1: not JSON (Expecting value); is the file whole?"),
    ],
)
def test_the_wrong_form(tmp_path: Path, form: str, message: str) -> None:
    assert refusal(tmp_path, OWN, form=form).startswith(message)


def test_more_wrong_forms(tmp_path: Path) -> None:
    names = "arrival_s, arrival_time, arrival, start_time, arrived_at"
    assert refusal(tmp_path, '{"t": 1}', form="records") == f"line 1: none of {names}, but 't'"
    wanted = "one JSON object with start_times, input_lens, output_lens"
    assert refusal(tmp_path, "[1]", form="vllm-bench") == f"{wanted}, not [1]"
    assert refusal(tmp_path, "[" * 100_000, form="vllm-bench").startswith("not JSON of a benchmark")
    assert refusal(tmp_path, "a\rb", form="csv").startswith(
        "line 1: is not CSV (new-line character seen in unquoted field"
    )


def test_options_that_cannot_be(tmp_path: Path) -> None:
    path = written(tmp_path, OWN)
    for options, message in (
        ({"form": "mooncacke"}, "unknown format 'mooncacke'; did you mean mooncake? (known: auto, azure"),
        ({"limit": 0}, "limit must be at least 1, not 0"),
        ({"speed": 0}, "speed must be a finite number above zero, not 0"),
        ({"speed": math.nan}, "speed must be a finite number above zero, not nan"),
        ({"speed": 1e-320}, "speed 1e-320 makes the trace endless; 1 keeps its pace"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            read_trace(path, **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="trace must be a name or a path, not 3"):
        read_trace(3)  # type: ignore[arg-type]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    written(tmp_path, OWN, "morning.csv")
    for path, message in (
        (tmp_path / "mornin.csv", f"no such file; did you mean {tmp_path / 'morning.csv'}?"),
        (tmp_path / "nowhere" / "x.csv", "no such file"),
        (tmp_path, "is a folder; name a file in it"),
        (tmp_path / "morning.csv" / "x", "cannot be read: Not a directory"),
        (tmp_path / "a\0b", "cannot be read: embedded null byte"),
    ):
        with pytest.raises(InputError) as error:
            read_trace(path)
        assert str(error.value) == f"trace {path}: {message}"


def test_damaged_gzip(tmp_path: Path) -> None:
    packed = gzip.compress((OWN + "11,5,6\n" * 10_000).encode())
    for damaged in (packed[:-20], packed[:40], packed[:30] + b"\0\0\0" + packed[33:], packed + b"more"):
        assert refusal(tmp_path, damaged).startswith("the gzip data is damaged or cut off (")


def test_nothing_is_read_beyond_the_limit(tmp_path: Path) -> None:
    lines = OWN.encode() + b"10.5,1,1\n" * 1000
    assert len(read(tmp_path, lines + b"\xff", limit=500).requests) == 500


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(
    st.lists(
        st.tuples(st.floats(0, 1e6), st.integers(0, 10**9), st.integers(0, 10**9)).filter(
            lambda row: row[1] * row[2] > 0
        ),
        min_size=1,
        max_size=30,
    ),
    st.floats(0.1, 10),
)
def test_what_is_written_is_read(tmp_path: Path, rows: list[tuple[float, int, int]], speed: float) -> None:
    table = "arrival_s,prompt_tokens,output_tokens\n" + "".join(
        f"{t!r},{prompt},{output}\n" for t, prompt, output in rows
    )
    lines = "".join(
        json.dumps({"arrival": t, "prompt_len": prompt, "output_len": output}) + "\n" for t, prompt, output in rows
    )
    first = min(row[0] for row in rows)
    expected = sorted(rows, key=lambda row: row[0])
    for content in (table, lines):
        assert short(read(tmp_path, content, speed=speed)) == [((t - first) / speed, p, o) for t, p, o in expected]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.text(max_size=200).map(str.encode),
        st.sampled_from([AZURE, MOONCAKE, OWN]).map(str.encode),
    ),
    st.binary(max_size=4),
    st.integers(0, 150),
)
def test_whatever_is_in_a_file_one_line_tells(tmp_path: Path, content: bytes, noise: bytes, place: int) -> None:
    path = written(tmp_path, content[:place] + noise + content[place + len(noise) :])
    for form in ("auto", *FORMS):
        said = ""
        requests: tuple[Request, ...] = ()
        try:
            requests = read_trace(path, form).requests
        except InputError as error:
            said = str(error)
        assert bool(requests) != said.startswith(f"trace {path}")
        assert len(said.splitlines()) <= 1
        assert all(request.arrival >= 0 and request.prompt > 0 and request.output > 0 for request in requests)


def test_the_page_names_every_form_and_key(repo_root: Path) -> None:
    page = (repo_root / "docs" / "traces.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE)
    assert tuple(rows) == FORMS
    for names in (
        *RECORD_KEYS,
        CSV_OPTIONAL,
        BENCH_KEYS,
        HASHED_KEYS,
        *(columns.names for columns in CSV_FORMS.values()),
    ):
        assert [name for name in names if name not in page] == []


@pytest.mark.parametrize(
    ("name", "form", "count", "prompts", "outputs", "last"),
    [
        ("traces/AzureLLMInferenceTrace_conv.csv", "azure", 19_366, 22_361_870, 4_088_665, 3501.721937),
        ("traces/AzureLLMInferenceTrace_code.csv", "azure", 8_819, 18_059_974, 245_896, 3435.948056),
        ("traces/mooncake_conversation.jsonl", "mooncake", 12_031, 144_793_823, 4_122_048, 3536.999),
        ("rtx4090-llama-3.1-8b/requests.jsonl", "records", 300, 257_239, 195_753, 29.100521326065063),
    ],
)
def test_public_traces(
    shared_folder: Path, name: str, form: str, count: int, prompts: int, outputs: int, last: float
) -> None:
    trace = read_trace(shared_folder / "data" / name)
    assert (trace.form, trace.left_out) == (form, {})
    assert trace.notes == ((NO_END,) if form == "azure" else ())
    assert len(trace.requests) == count
    assert sum(request.prompt for request in trace.requests) == prompts
    assert sum(request.output for request in trace.requests) == outputs
    assert trace.requests[-1].arrival == pytest.approx(last, abs=1e-6)
    if form == "mooncake":
        assert all(len(request.prefix) == -(-request.prompt // 512) for request in trace.requests)
