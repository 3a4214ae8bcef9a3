"""What ``costmodel simulate`` writes: the table of requests, and files that are there already."""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path

import pytest

from costmodel.cli.files import write_atomically
from costmodel.hardware.errors import InputError
from costmodel.simulation.detailing import RequestRow
from tests.cli.runner import document, refusal, run

LOAD = "simulate load --clients 4 --requests 12 --prompt 200 --output 20 --decode-ms 10 --prefill-ms 30"
TRACE = "arrival_s,prompt_tokens,output_tokens,group\n0,100,5,a\n0.5,300,1,b\n1,9000000,4,a\n"


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_the_table_of_requests(own_folder: Path) -> None:
    (own_folder / "trace.csv").write_text(TRACE, encoding="utf-8")
    result = run("simulate trace trace.csv --requests-file out.csv")
    assert result.exit_code == 0
    assert result.stderr == "wrote out.csv\n"
    rows = rows_of(own_folder / "out.csv")
    assert tuple(rows[0]) == RequestRow._fields
    first, second, third = rows
    assert [row["group"] for row in rows] == ["a", "b", "a"]
    assert float(first["ttft_s"]) == pytest.approx(float(first["first_token_s"]) - float(first["arrival_s"]))
    assert float(first["tpot_s"]) == pytest.approx((float(first["last_token_s"]) - float(first["first_token_s"])) / 4)
    assert (second["tokens"], second["tpot_s"], second["done"]) == ("1", "", "true")
    assert (third["ttft_s"], third["done"]) == ("", "false")
    assert "max_model_len" in third["refused"]
    assert "exists; use --force" in refusal("simulate trace trace.csv --requests-file out.csv")
    assert run("simulate trace trace.csv --requests-file out.csv --force").exit_code == 0


def test_the_table_as_parquet(own_folder: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert run(f"{LOAD} --requests-file out.parquet").exit_code == 0
    table = parquet.read_table(own_folder / "out.parquet")
    assert tuple(table.column_names) == RequestRow._fields
    assert table.num_rows == 12
    assert table.column("refused").null_count == 12


def test_parquet_needs_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    message = refusal(f"{LOAD} --requests-file out.parquet")
    assert "Parquet needs pyarrow" in message
    assert ".csv" in message


def test_a_broken_pyarrow_is_told_in_a_line(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = own_folder / "broken" / "pyarrow"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('libarrow.so: no such file')")
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(own_folder / "broken")
    assert "libarrow.so: no such file" in refusal(f"{LOAD} --requests-file out.parquet")


def test_standing_streams_have_their_tokens_and_no_first_one(own_folder: Path) -> None:
    asked = "simulate interference --streams 3 --duration 10 --json --requests-file out.csv"
    found = run(asked)
    assert found.exit_code == 0
    rows = rows_of(own_folder / "out.csv")
    streams = [row for row in rows if row["group"] == "stream"]
    gaps = document(asked.replace(" --requests-file out.csv", ""))["injected"]["gaps_per_stream"]
    assert len(streams) == 3
    for row in streams:
        assert int(row["tokens"]) == gaps
        assert 9.9 < float(row["last_token_s"]) <= 10
        assert float(row["tpot_s"]) == pytest.approx(float(row["last_token_s"]) / gaps)
        empty = ("output_tokens", "scheduled_s", "first_token_s", "ttft_s", "e2e_s", "queueing_s", "refused")
        assert {row[name] for name in empty} == {""}
        assert row["done"] == "false"
    assert [row["tokens"] for row in rows if row["group"] == "injected"] == ["1"]


def test_a_file_that_came_up_meanwhile_is_left_alone(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = own_folder / "out.txt"
    write_atomically(path, "first", force=False)
    assert path.read_text(encoding="utf-8") == "first"
    for links in (True, False):
        if not links:
            monkeypatch.setattr(os, "link", refuse)
        with pytest.raises(InputError, match=r"out\.txt exists; use --force"):
            write_atomically(path, "second", force=False)
        assert path.read_text(encoding="utf-8") == "first"
    write_atomically(own_folder / "other.txt", "other", force=False)
    write_atomically(path, "third", force=True)
    assert path.read_text(encoding="utf-8") == "third"
    assert sorted(each.name for each in own_folder.iterdir()) == ["other.txt", "out.txt"]


def refuse(*_: object) -> None:
    raise PermissionError("no links here")


def test_the_report_comes_though_the_figure_cannot_be_drawn(own_folder: Path) -> None:
    result = run("simulate load --rate 0.001 --duration 1 --requests-file a.csv --plot a.png")
    assert result.exit_code == 2
    assert "0 sent" in result.stdout
    assert result.stderr == "wrote a.csv\nerror: no step was run: there is nothing to draw\n"
    assert not (own_folder / "a.png").exists()


def test_figures_that_cannot_be_drawn_are_refused_before_anything_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_interference(*_: object, **__: object) -> None:
        raise AssertionError("simulated")

    monkeypatch.setattr("costmodel.simulation.interfering.run_interference", run_interference)
    assert "up to 4 panels" in refusal("simulate interference --chunk 512,1024,2048,4096,one-step --plot x.png")
    assert "shows one" in refusal("simulate interference --chunk 512,1024 --figure load --plot x.png")
    budgets = ",".join(str(512 + number) for number in range(8))
    assert "7 curves" in refusal(f"simulate interference --chunk {budgets} --figure percentiles --plot x.png")
