"""Simulations on a real Dask scheduler: the rows are those of the serial run, also where a worker is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import costmodel
from costmodel.sweeping import cluster as cluster_module

pytest.importorskip("distributed", reason="needs distributed (extra dask)")

LOAD: dict[str, Any] = {
    "simulate": "load", "gpu": ["h100", "l40s"], "rate": [3.0, 6.0, 9.0], "chunk": [512, 2048], "prompt": 700, "output": 60,
    "requests": 40,
}  # fmt: skip
LONG = LOAD | {"requests": 400}
"""Simulations that are not all done when something is lost."""


class Cluster:
    """A scheduler and two workers, processes of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(Path.cwd()), *sys.path]))}
        named = folder / "scheduler.json"
        self.processes = [self._start("scheduler", "--port", "0", "--scheduler-file", str(named))]
        self.address = ""
        for _ in range(600):
            if named.exists() and (text := named.read_text()).strip():
                self.address = json.loads(text)["address"]
                break
            time.sleep(0.05)
        self.workers = [self._start("worker", self.address, "--no-nanny", "--nthreads", "1") for _ in range(2)]

    def _start(self, kind: str, *options: str) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            f"distributed.cli.dask_{kind}",
            "--host",
            "127.0.0.1",
            "--no-dashboard",
            *options,
        ]
        with (self._folder / f"{kind}.log").open("ab") as log:
            return subprocess.Popen(command, env=self._environment, stdout=log, stderr=log, cwd=self._folder)

    def stop(self) -> None:
        for process in (*self.workers, *self.processes):
            process.kill()
            process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        from distributed import Client

        with Client(made.address, timeout=30, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=60)
        yield made
    finally:
        made.stop()


@pytest.mark.filterwarnings("default")
def test_rows_are_those_of_the_serial_run_with_a_worker_lost(cluster: Cluster) -> None:
    serial = costmodel.sweep(**LOAD, workers=1).document()
    assert costmodel.sweep(**LOAD, dask=cluster.address).document() == serial

    def lose(done: int, total: int) -> None:
        if done == 2:
            cluster.workers[0].kill()

    assert costmodel.sweep(**LOAD, dask=cluster.address, progress=lose).document() == serial


@pytest.mark.filterwarnings("default")
def test_a_scheduler_that_is_lost_is_told(
    cluster: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    journal = tmp_path / "j.jsonl"

    def lose(done: int, total: int) -> None:
        if done == 2:
            cluster.processes[0].kill()

    with pytest.raises(costmodel.CostModelError) as caught:
        costmodel.sweep(**LONG, dask=cluster.address, progress=lose, journal=journal)
    assert str(caught.value) == (
        f"lost the Dask scheduler at {cluster.address}; journal {journal} has what was simulated, --resume goes on with it"
    )
    assert capfd.readouterr().err == caplog.text == ""
    kept = len(journal.read_text().splitlines()) - 1
    assert 2 <= kept < 12
    again = costmodel.sweep(**LONG, workers=1, journal=journal, resume=True)
    assert all(row.tpot_s is not None for row in again.rows)


@pytest.mark.filterwarnings("default")
def test_workers_that_are_all_lost_are_told(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "CHECK_S", 0.1)
    monkeypatch.setattr(cluster_module, "GRACE_S", 0.5)

    def lose(done: int, total: int) -> None:
        if done == 2:
            for worker in cluster.workers:
                worker.kill()

    with pytest.raises(costmodel.CostModelError, match=r"all workers of the Dask scheduler at .* are lost, for 0\.5 s"):
        costmodel.sweep(**LONG, dask=cluster.address, progress=lose)


@pytest.mark.filterwarnings("default")
def test_a_scheduler_that_is_not_there_or_has_no_workers_is_told(cluster: Cluster) -> None:
    for address, reason in (
        ("tcp://127.0.0.1:1", "no Dask scheduler answers at"),
        ("nowhere", "no Dask scheduler answers"),
    ):
        with pytest.raises(costmodel.InputError, match=reason):
            costmodel.sweep(**LOAD, dask=address)
    for worker in cluster.workers:
        worker.terminate()
        worker.wait(timeout=30)
    with pytest.raises(costmodel.InputError, match="has no workers"):
        costmodel.sweep(**LOAD, dask=cluster.address)
