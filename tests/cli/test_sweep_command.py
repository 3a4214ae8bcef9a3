"""``costmodel sweep``: tables, files, reports, progress, refusals."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import costmodel
from costmodel.cli import sweep_table
from costmodel.cli.sweep_progress import progress_text
from costmodel.sweeping.journal import Journal
from tests.cli.runner import document, printed, refusal, run

MANY = ",".join(map(str, range(1, 501)))


def test_options_take_several_values_and_may_be_given_again() -> None:
    found = document("sweep --gpu h100,a100 --gpu l40s --tp 1,2 --chunk one-step,512 --rate 0.1,.5 --streams 4 --json")
    assert found["kind"] == "steps"
    assert len(found["rows"]) == 3 * 2 * 2 * 2
    expected = costmodel.sweep(gpu=["h100", "a100", "l40s"], tp=[1, 2], chunk=[None, 512], rate=[0.1, 0.5], streams=4)
    assert found == expected.document()


def test_the_report_has_the_rows_and_the_reasons() -> None:
    text = printed("sweep --gpu h100,l40s --tp 1,3 --streams 1,32")
    assert text.startswith("8 configurations, 4 of them without an answer.")
    assert "tp 3 does not divide" in text
    assert "1 × no closed loop: the KV cache is too small for all clients" in text
    row = next(line for line in text.splitlines() if "h100-sxm" in line and " 32 " in line)
    [only] = costmodel.sweep(streams=32).rows
    assert f"{(only.tpot_s or 0) * 1e3:.2f}" in row


def test_of_many_rows_those_that_none_beats_are_shown() -> None:
    streams = ",".join(str(number) for number in range(1, 101))
    text = printed(f"sweep --gpu h100,a100 --streams {streams} --prompt 500")
    assert "200 configurations." in text
    assert "that no other row of the same model, work and rung beats" in text
    assert "a100" not in text.partition("beats")[2].partition("note:")[0]
    assert len(text.splitlines()) < 60
    assert "datasheet rates, a floor" in printed("sweep --gpu h100-pcie")


def test_csv_has_every_row(own_folder: Path) -> None:
    result = run("sweep --gpu h100,l40s --tp 1,3 --rate 0.1 --out a.csv")
    assert result.exit_code == 0
    assert result.stderr == "wrote a.csv\n"
    with (own_folder / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    expected = costmodel.sweep(gpu=["h100", "l40s"], tp=[1, 3], rate=0.1).document()["rows"]
    assert len(rows) == 4
    for row, wanted in zip(rows, expected, strict=True):
        for name, value in wanted.items():
            text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
            assert row[name] == text, name
    assert "a.csv exists; use --force to replace it" in refusal("sweep --out a.csv")
    assert run("sweep --out a.csv --force").exit_code == 0


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="needs pyarrow (extra parquet)")
def test_parquet_has_every_row(own_folder: Path) -> None:
    import pyarrow.parquet

    assert run("sweep --gpu h100,l40s --tp 1,3 --rate 0.1 --out a.parquet").exit_code == 0
    table = pyarrow.parquet.read_table(own_folder / "a.parquet")
    expected = costmodel.sweep(gpu=["h100", "l40s"], tp=[1, 3], rate=0.1).document()["rows"]
    assert table.to_pylist() == expected
    kinds = {str(field.type) for field in table.schema}
    assert kinds == {"string", "int64", "double", "bool"}


def test_simulations_go_into_a_table_and_leave_no_journal(own_folder: Path) -> None:
    command = "sweep --simulate load --rate 2,4 --requests 20 --prompt 100 --output 10 --workers 1 --ttft-slo-ms 50 --out a.csv"
    result = run(command)
    assert result.exit_code == 0, result.stderr
    assert [path.name for path in own_folder.iterdir()] == ["a.csv"]
    assert "2 simulated loads." in result.stdout
    assert "100 %" in result.stdout


def test_a_journal_of_ones_own_is_kept(own_folder: Path) -> None:
    command = "sweep --simulate load --rate 2,4 --requests 20 --prompt 100 --output 10 --workers 1 --json --journal j"
    found = document(command)
    assert len((own_folder / "j").read_text().splitlines()) == 3
    assert "journal j is there from an earlier sweep" in refusal(command)
    assert document(f"{command} --resume") == found


@pytest.mark.parametrize("figure", ["tpot", "interactivity", "price"])
def test_figures_are_drawn(own_folder: Path, figure: str) -> None:
    (own_folder / "p.toml").write_text("[prices]\nh100 = 2.5\na100 = 1.4\n")
    result = run(f"sweep --gpu h100,a100,l40s --streams 1,8,64 --prices p.toml --plot {figure}.svg --figure {figure}")
    assert result.exit_code == 0, result.stderr
    assert "no price of l40s in the table" in result.stdout
    assert (own_folder / f"{figure}.svg").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--gpu h1000", "unknown GPU 'h1000'"),
        ("--rate x", "'x' is not a number"),
        ("--rate -1", "rate must be a finite number above zero"),
        ("--prompt 8,000", "is read as several values"),
        ("--requests 5", "--requests is for --simulate load"),
        ("--resume", "--resume is for --simulate load"),
        ("--simulate load --resume", "--resume needs --out or --journal"),
        ("--simulate loads", "'loads' is not one of"),
        ("--figure price", "--figure price needs --plot FILE"),
        ("--figure price --plot a.png", "--figure price needs --prices FILE"),
        ("--plot a.gif", "unknown suffix '.gif'"),
        ("--out a.txt", "unknown suffix '.txt'"),
        ("--out no/a.csv", "/no does not exist"),
        (
            "--rate 1,500",
            "'1,500' is read as several values; write thousands without a separator: 1500, or give the option once",
        ),
        ("--dtype bf15", "unknown dtype 'bf15'; did you mean"),
        ("--kv-dtype fp9", "unknown KV-cache dtype 'fp9'; did you mean fp8"),
        ("--compute-dtype x", "unknown compute dtype 'x'; known: fp32"),
        ("--ep 0", "ep must be at least 1"),
        (f"--streams {MANY} --prompt {MANY} --json", "250,000 rows are more"),
        ("--simulate load --streams 2 --burstiness 5", "burstiness is for requests at a rate"),
        (
            "--simulate load --rate 1 --streams 64",
            "streams makes no difference here (requests at a rate are no clients)",
        ),
        ("--simulate load --rate 1 --context 64", "context makes no difference here (a load makes its own)"),
        ("--simulate interference --output 5", "--output is for loads"),
        ("--simulate interference --burstiness 5", "burstiness is for a load"),
        ("--simulate interference --seed 5", "seed is for a load"),
        ("--simulate interference --tpot-slo-ms 5", "a limit on TPOT is for a load"),
        ("--simulate load --rate 1 --workers 0 --journal j", "workers must be at least 1"),
        ("--simulate load --rate 1 --requests 5 --duration 5 --out a.csv", "either requests or duration"),
        ("--simulate load --rate 1 --chunk one-step --out a.csv", "chunk must be a number of tokens for a load"),
        ("--simulate load --rate 1 --max-num-seqs 0 --out a.csv", "max_num_seqs must be at least 1"),
        ("--simulate interference --duration 0 --journal j", "duration must be a finite number above zero"),
        (
            "--simulate load --rate 1 --output 1,2,3,4,5 --gpu h100,l40s --plot a.png --out a.csv",
            "10 lines, one for each model",
        ),
        ("--simulate load --rate 1 --out $PWD/ab.csv --journal ab.csv", "--journal names the same file"),
        ("--simulate load --dask nowhere --rate 1", "no Dask scheduler answers at 'nowhere'"),
        ("--simulate load --ttft-slo-ms 0 --rate 1", "ttft-slo-ms must be a finite number above zero"),
        ("--prices none.csv", "table of prices none.csv: no such file"),
    ],
)
def test_bad_input_is_refused(own_folder: Path, options: str, reason: str) -> None:
    if "--dask" in options:
        pytest.importorskip("distributed", reason="needs distributed (extra dask)")
    assert reason in refusal(f"sweep {options}".replace("$PWD", str(own_folder)))
    assert list(own_folder.iterdir()) == []


def test_where_no_row_has_an_answer_the_exit_code_is_1(own_folder: Path) -> None:
    result = run("sweep --tp 3 --plot a.png")
    assert result.exit_code == 1
    assert result.stderr == "a.png is not drawn: no row has an answer\n"
    assert "tp 3 does not divide" in result.stdout
    result = run("sweep --simulate load --rate 1 --model Llama-3.1-405B --out a.csv")
    assert result.exit_code == 1
    assert [path.name for path in own_folder.iterdir()] == ["a.csv"]


def test_a_figure_of_too_many_lines_is_refused_after_the_report(own_folder: Path) -> None:
    result = run("sweep --prompt 1,2,3,4,5,6,7,8,9 --plot a.png --out a.csv")
    assert result.exit_code == 2
    assert "9 lines" in result.stderr
    assert "9 configurations." in result.stdout
    assert [path.name for path in own_folder.iterdir()] == ["a.csv"]


def test_a_home_folder_is_found(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(own_folder))
    command = "sweep --simulate load --rate 2 --requests 2 --prompt 10 --output 2 --workers 1 --out=~/a.csv"
    assert run(command).exit_code == 0
    assert [path.name for path in own_folder.iterdir()] == ["a.csv"]


def test_a_file_of_ones_own_is_no_journal(own_folder: Path) -> None:
    notes = own_folder / "notes.txt"
    notes.write_text("my only notes")
    command = "sweep --simulate load --rate 2 --requests 2 --prompt 10 --output 2 --journal notes.txt --resume"
    assert "journal notes.txt: is not a journal of a sweep" in refusal(command)
    assert notes.read_text() == "my only notes"


def test_warnings_and_notes_of_simulations_are_told(own_folder: Path) -> None:
    text = printed(
        "sweep --simulate load --rate 2,3 --requests 2 --prompt 10 --output 2 --gpu h100,h100-nvl --engine sglang --workers 1"
    )
    assert "warning of 2 rows: no calibration in use" in text
    assert "note: only vLLM's defaults are known" in text.replace("\n  ", " ")
    assert "note: h100 is taken as" in text


def test_prices_are_told_as_in_plan(own_folder: Path) -> None:
    (own_folder / "p.toml").write_text('currency = "EUR"\n[prices]\nh100 = 2.5\n')
    assert "closed-loop per 1M tokens [EUR]" in printed("sweep --prices p.toml")
    assert "closed-loop TPOT ms" in printed("sweep")
    assert document("sweep --prices p.toml --json")["currency"] == "EUR"


def test_progress_tells_what_is_left() -> None:
    assert progress_text(0, 200, 0.0, 0) == "0 of 200 simulations"
    assert progress_text(50, 200, 10.0, 50) == "50 of 200 simulations, about 30 s left"
    assert progress_text(150, 200, 100.0, 50) == "150 of 200 simulations, about 1 min 40 s left"
    assert progress_text(150, 2000, 100.0, 10) == "150 of 2,000 simulations, about 5 h 8 min left"
    assert progress_text(200, 200, 10.0, 50) == "200 of 200 simulations"


def test_numbers_of_the_document_are_strict_json() -> None:
    text = printed("sweep --tp 1,3 --json")
    assert json.loads(text)["rows"][1]["tpot_s"] is None
    assert "NaN" not in text


SMALL = "sweep --simulate load --rate 2 --requests 2 --prompt 10 --output 2 --workers 1"


def test_a_journal_that_is_no_file_is_told_as_such(own_folder: Path) -> None:
    (own_folder / "there").mkdir()
    assert "journal there is a folder" in refusal(f"{SMALL} --journal there")
    assert "is not a regular file" in refusal(f"{SMALL} --journal {os.devnull}")


@pytest.mark.skipif(os.name == "nt", reason="no locks of this kind")
def test_two_sweeps_do_not_write_one_journal(own_folder: Path) -> None:
    path = own_folder / "j.jsonl"
    first = Journal(path, resume=False)
    try:
        before = path.read_bytes()
        assert "being written by another process" in refusal(f"{SMALL} --journal j.jsonl --resume")
        assert path.read_bytes() == before
    finally:
        first.close()
    assert run(f"{SMALL} --journal j.jsonl --resume".split()).exit_code == 0


def test_a_rate_whose_reciprocal_is_no_time_is_refused(own_folder: Path) -> None:
    assert "rate must be at least 1e-12" in refusal("sweep --rate 1e-320")
    assert "rate must be at least 1e-12" in refusal("sweep --simulate interference --rate 1e-300")
    assert document("sweep --rate 1e-12 --json")["rows"][0]["fraction_of_gaps"] > 0


def test_a_single_row_without_an_answer(own_folder: Path) -> None:
    assert run(["sweep", "--tp", "3"]).stdout.startswith("1 configuration, without an answer.")


@pytest.mark.skipif(os.name == "nt", reason="no SIGTERM of this kind")
def test_sigterm_while_the_table_is_written_keeps_the_journal_and_no_half_file(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked_to_end(found: object) -> Iterator[str]:
        yield "half"
        os.kill(os.getpid(), signal.SIGTERM)
        yield "the rest"

    with monkeypatch.context() as patched:
        patched.setattr(sweep_table, "_csv", asked_to_end)
        assert run([*SMALL.split(), "--out", "x.csv"]).exit_code == 130
    assert [path.name for path in own_folder.iterdir()] == ["x.csv.journal.jsonl"]
    assert run([*SMALL.split(), "--out", "x.csv", "--resume"]).exit_code == 0
    assert [path.name for path in own_folder.iterdir()] == ["x.csv"]
