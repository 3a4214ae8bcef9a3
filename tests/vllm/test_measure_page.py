"""The commands of docs/measure-your-server.md on a CPU, as they stand there but for their installation."""

from __future__ import annotations

import pytest

from costmodel.validation.measurements.files import read_measurement
from tests.vllm.conftest import Followed

pytestmark = pytest.mark.vllm


def test_the_page_runs_on_a_cpu(followed: Followed) -> None:
    assert list(followed.printed) == ["gpus", "measure", "fit", "check", "predict"]
    found = read_measurement(followed.folder / "mine.jsonl")
    assert {"decode", "prefill", "chunk", "mixed"} <= {step.purpose for step in found.steps}
    assert (found.machine.profile, found.clock) == ("cpu", "cpu")


def test_every_answer_is_of_the_machine_that_was_measured(followed: Followed) -> None:
    assert "steps of tiny" in followed.printed["fit"]
    assert "prompts beside decodes" in followed.printed["check"]
    assert "calibrated" in followed.printed["predict"]
