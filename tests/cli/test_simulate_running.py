"""Ctrl-C while a simulation runs, after its last step, and while the command is still being imported."""

from __future__ import annotations

import builtins
import signal
from typing import Any

import pytest

from costmodel.cli import entry
from costmodel.cli.simulate_running import Watch
from costmodel.simulation import results
from costmodel.simulation.quantiles import Gaps
from costmodel.simulation.stepping import Engine, Progress
from tests.cli.runner import run

LOAD = "simulate load --clients 4 --requests 12 --prompt 100 --output 20"


def test_ctrl_c_while_the_percentiles_are_counted_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Gaps.quantiles

    def interrupted(self: Gaps, *arguments: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return whole(self, *arguments)

    monkeypatch.setattr(Gaps, "quantiles", interrupted)
    result = run(LOAD)
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr.strip() == "error: interrupted"


def test_ctrl_c_between_the_last_report_and_the_last_step_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short simulation is reported on once, before its first step."""
    monkeypatch.setattr("costmodel.simulation.stepping.REPORT_EVERY", 1e9)
    read, left = Engine.read, iter(range(5))

    def interrupted(self: Engine, batch: Any) -> None:
        read(self, batch)
        if next(left, None) == 0:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Engine, "read", interrupted)
    result = run(f"{LOAD} --scheduling-policy priority")
    assert result.exit_code == 130
    assert "TTFT" in result.stdout
    assert "interrupted: the numbers are of what was simulated until then" in result.stderr


def test_an_engine_says_that_it_is_over() -> None:
    with Watch() as watch:
        watch(Progress(0.0, 0, 0))
        watch(Progress(1.0, 3, 3, over=True))
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_libraries_cannot_catch_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    def percentiles(*_: Any) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except Exception:
            pytest.fail("Ctrl-C was an error among others")

    monkeypatch.setattr(results, "percentiles", percentiles)
    assert run(LOAD).exit_code == 130


def test_ctrl_c_while_the_command_is_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = builtins.__import__

    def interrupted(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "costmodel.cli.main":
            raise KeyboardInterrupt
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", interrupted)
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "error: interrupted\n"


def test_the_entry_runs_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["costmodel", "--version"])
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("costmodel")
