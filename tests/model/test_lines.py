"""Files that grow line by line: every line is whole, whatever the disk says."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from costmodel.hardware.errors import InputError
from costmodel.lines import Lines

resource = pytest.importorskip("resource")


@contextmanager
def small_disk() -> Iterator[None]:
    """Files of this process, also those that pytest writes to, end after so many bytes, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_lines_are_added_behind_the_last_whole_one(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    first = Lines(path)
    first.add({"a": 1})
    first.close()
    with path.open("ab") as file:
        file.write(b'{"cut')
    again = Lines(path, goes_on=True, sync=True)
    again.add({"b": "é\ud800"})
    again.close()
    assert [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()] == [{"a": 1}, {"b": "é\ud800"}]
    with pytest.raises(FileExistsError):
        Lines(path)
    with pytest.raises(InputError, match="cannot write"):
        Lines(tmp_path / "missing", goes_on=True)


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = Lines(path)
    refused = []
    with small_disk():
        for _ in range(3):
            lines.add({"text": "x" * 300})
        whole = path.read_bytes()
        for size in (300, 1):  # also one that there were room for: a line that is missing is not passed over
            with pytest.raises(InputError) as caught:
                lines.add({"text": "x" * size})
            refused.append(str(caught.value))
    lines.close()
    assert all(text.endswith("File too large; it has what came before") for text in refused)
    assert path.read_bytes() == whole
    assert whole.count(b"\n") == 3


def test_a_file_without_a_first_line_is_none(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "a.jsonl")
    with small_disk(), pytest.raises(InputError, match=r"File too large$"):
        lines.add({"text": "x" * 2000})
    lines.close()
    assert list(tmp_path.iterdir()) == []
