"""Saving is refused before any work where it cannot succeed, replaces nothing unasked, and leaves no half a file."""

import os
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from costmodel.cli.figures import check_target, draw_timeline, save_figure
from costmodel.hardware.errors import InputError

MAGIC = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.mark.parametrize("kind", ["timeline", "breakdown", "roofline", "heights"])
@pytest.mark.parametrize("suffix", sorted(MAGIC))
def test_every_figure_saves_in_every_format(
    kind: str, suffix: str, drawn: Callable[..., Figure], tmp_path: Path
) -> None:
    path = tmp_path / f"figure{suffix.upper() if kind == 'heights' else suffix}"
    save_figure(drawn(kind, "default"), path, False)
    assert path.read_bytes().startswith(MAGIC[suffix])
    assert [item.name for item in tmp_path.iterdir()] == [path.name]


def test_png_has_slide_size(drawn: Callable[..., Figure], tmp_path: Path) -> None:
    path = tmp_path / "figure.png"
    save_figure(drawn("timeline", "default"), path, False)
    header = path.read_bytes()
    assert (int.from_bytes(header[16:20]), int.from_bytes(header[20:24])) == (2560, 1440)


@pytest.mark.parametrize("suffix", sorted(MAGIC))
def test_the_same_prediction_gives_the_same_bytes(suffix: str, case: Callable, tmp_path: Path) -> None:
    prediction, steps, _ = case("chunked")
    paths = [tmp_path / f"{name}{suffix}" for name in "ab"]
    for path in paths:
        save_figure(draw_timeline(prediction, steps), path, False)
    first, second = (path.read_bytes() for path in paths)
    assert first == second
    assert b"dc:date" not in first
    assert b"CreationDate" not in first


def test_title_goes_into_the_file(drawn: Callable[..., Figure], tmp_path: Path) -> None:
    path = tmp_path / "figure.svg"
    save_figure(drawn("timeline", "default"), path, False)
    assert "One 8,000-token prompt freezes all 32 streams" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", ["timeline", "breakdown", "roofline", "heights"])
def test_every_text_is_drawn(
    kind: str, drawn: Callable[..., Figure], texts: Callable[[Figure], list[Text]], tmp_path: Path
) -> None:
    path, figure = tmp_path / "figure.svg", drawn(kind, "default")
    save_figure(figure, path, False)
    comments = set(re.findall(r"<!-- (.*?) -->", path.read_text(encoding="utf-8")))
    ticks = {label.get_text() for axes in figure.axes for label in (*axes.get_xticklabels(), *axes.get_yticklabels())}
    wanted = {line for text in texts(figure) for line in text.get_text().splitlines()} - ticks
    assert {line for line in wanted if line.strip() not in {each.strip() for each in comments}} == set()
    assert wanted


@pytest.mark.parametrize("name", ["figure.jpg", "figure", "figure.png.gz", ".png"])
def test_unknown_suffixes_are_refused_by_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"use \.png, \.svg or \.pdf"):
        check_target(tmp_path / name, True)


def test_existing_files_need_force(drawn: Callable[..., Figure], tmp_path: Path) -> None:
    path = tmp_path / "figure.png"
    path.write_text("precious", encoding="utf-8")
    for attempt in (lambda: check_target(path, False), lambda: save_figure(drawn("timeline", "default"), path, False)):
        with pytest.raises(InputError, match="exists; use --force"):
            attempt()
    assert path.read_text(encoding="utf-8") == "precious"
    path.chmod(0o640)
    save_figure(drawn("timeline", "default"), path, True)
    assert path.read_bytes().startswith(MAGIC[".png"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_folders_and_missing_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(InputError, match="it is a folder"):
        check_target(tmp_path / "folder.png", True)
    with pytest.raises(InputError, match="does not exist"):
        check_target(tmp_path / "missing" / "figure.png", False)
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="does not exist"):
        check_target(tmp_path / "file" / "figure.png", False)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_special_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(InputError, match="not a regular file"):
        check_target(tmp_path / "pipe.png", True)


def test_missing_permission_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "figure.png"
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)
        with pytest.raises(InputError, match="no permission to write in"):
            check_target(path, False)
        path.write_text("precious", encoding="utf-8")
        with pytest.raises(InputError, match="no permission to write it"):
            check_target(path, True)


@pytest.mark.parametrize("step", ["copymode", "replace"])
def test_a_failure_leaves_the_old_file_and_no_other(
    step: str, drawn: Callable[..., Figure], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, figure = tmp_path / "figure.png", drawn("timeline", "default")
    path.write_text("precious", encoding="utf-8")

    def fail(*_args: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((shutil, "copymode") if step == "copymode" else (os, "replace")), fail)
    with pytest.raises(InputError, match="No space left on device"):
        save_figure(figure, path, True)
    assert path.read_text(encoding="utf-8") == "precious"
    assert [item.name for item in tmp_path.iterdir()] == ["figure.png"]


def test_a_link_keeps_pointing(drawn: Callable[..., Figure], tmp_path: Path) -> None:
    (tmp_path / "real.png").write_text("old", encoding="utf-8")
    link = tmp_path / "link.png"
    link.symlink_to(tmp_path / "real.png")
    save_figure(drawn("timeline", "default"), link, True)
    assert link.is_symlink()
    assert (tmp_path / "real.png").read_bytes().startswith(MAGIC[".png"])
