"""Input at the edge of what is refused, which is taken: the nearest valid choices, ``--force``, and every figure."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.cli.runner import SCRIPT, check_refusal, document, printed, run
from tests.cli.samples import MIXTURE

pytestmark = pytest.mark.usefixtures("mistakes")


def test_force_overwrites_what_is_there(own_folder: Path) -> None:
    assert run("predict --plot there.png --force").exit_code == 0
    assert (own_folder / "there.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("figure", ["timeline", "heights", "breakdown", "roofline"])
@pytest.mark.parametrize("more", ["", "--chunk 2048", "--calibration fits.toml"])
def test_every_figure_is_written(figure: str, more: str, own_folder: Path) -> None:
    result = run(f"predict --json --plot spike.svg --figure {figure} {more}")
    assert result.exit_code == 0, result.stderr or result.exception
    assert result.stderr == "wrote spike.svg\n"
    assert result.stdout == printed(f"predict --json {more}")
    assert b"<svg" in (own_folder / "spike.svg").read_bytes()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full")
@pytest.mark.parametrize("command", ["predict", "predict --json", "gpus list", "--help"])
def test_a_full_disk_is_said_in_one_line(command: str) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        found = subprocess.run(
            [SCRIPT, *shlex.split(command)], stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60
        )
    assert check_refusal(found.returncode, found.stderr) == "cannot write the output: No space left on device"


def test_an_interrupt_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(**_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("costmodel.cli.predict_command.predict", interrupted)
    found = run("predict")
    assert (found.exit_code, found.stdout, found.stderr) == (130, "", "error: interrupted\n")


def test_values_at_the_edge_are_taken() -> None:
    """The nearest valid choices that the messages name are valid."""
    assert document("predict --chunk 33 --prompt 100 --json")["spike"]["chunks"] == 100
    assert document(f"predict {MIXTURE} --tp 4 --ep 4 --json")["workload"]["expert_parallel"] == 4
    assert document("predict --tp 32 --json")["gpu"]["count"] == 32
    assert document("predict --prompt 1 --streams 1 --context 0 --every 1e-9 --json")["spike"]["overload"] is True
    assert document("predict --prompt 1e8 --json")["workload"]["prompt_tokens"] == 100_000_000
    assert document("predict --prompt 8_000 --json")["workload"]["prompt_tokens"] == 8000
    for spelling in ("8k", "8K"):
        assert document(f"predict --prompt {spelling} --json")["workload"]["prompt_tokens"] == 8000
    found = document("predict --streams 1k --context 2k --chunk 9k --json")["workload"]
    assert (found["streams"], found["context_tokens"], found["chunk_tokens"]) == (1000, 2000, 9000)
    several = document("predict --prompt 1k,100,2k --json")["predictions"]
    assert [item["workload"]["prompt_tokens"] for item in several] == [1000, 100, 2000]
    assert document("predict --gpu v100 --dtype fp16 --json")["workload"]["compute_dtype"] == "fp16"
    assert document("predict --chunk none --json")["workload"]["chunk_tokens"] is None


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")
def test_standard_output_that_is_closed_is_no_crash() -> None:
    found = subprocess.run(
        ["sh", "-c", '"$0" sweep --prompt 1000 >&-', SCRIPT], capture_output=True, text=True, check=False, timeout=60
    )
    assert (found.returncode, found.stderr) == (0, "")
