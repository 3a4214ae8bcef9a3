"""Every request and the course of time, from Python: what the command writes into its table."""

from __future__ import annotations

from typing import Any

import pytest

from costmodel import Pools, details, simulate_interference, simulate_load
from costmodel.hardware.errors import InputError

FIXED: Any = {"decode_s": 0.01, "prefill_s": 0.1}


def test_rows_are_those_of_the_document() -> None:
    load: Any = {"rate": 20.0, "requests": 40, "prompt": 300, "output": 30, "spread": 0.5, **FIXED}
    found = details(simulate_load, **load)
    assert found.document == simulate_load(**load)
    assert found.document.result is not None
    assert sum(request.tokens for request in found.requests) == found.document.result.output_tokens
    [course] = found.courses
    assert max(moment.running for moment in course) == found.document.result.running_max
    assert [moment.time_s for moment in course] == sorted(moment.time_s for moment in course)
    assert len(details(simulate_load, pools=Pools(1, 2), **load).courses) == 3


def test_streams_are_never_scheduled() -> None:
    found = details(simulate_interference, 500, 2, **FIXED)
    assert [request.group for request in found.requests] == ["stream"] * 2 + ["injected"] * 4
    stream = found.requests[0]
    assert (stream.output_tokens, stream.scheduled_s, stream.first_token_s, stream.ttft_s) == (None,) * 4


def test_other_functions_have_no_details() -> None:
    with pytest.raises(InputError, match="details are of"):
        details(print)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="did you mean"):
        details(simulate_load, clints=3)
