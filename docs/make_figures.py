"""Draw every figure of README and docs: `python docs/make_figures.py`."""

from __future__ import annotations

import sys
from pathlib import Path

from costmodel.cli.main import main

FOLDER = Path(__file__).parent / "figures"
FIGURES = {
    "timeline.png": ["--figure", "timeline"],
    "timeline-chunked.png": ["--figure", "timeline", "--chunk", "2048"],
    "heights.png": ["--figure", "heights"],
    "breakdown.png": ["--figure", "breakdown"],
    "roofline.png": ["--figure", "roofline"],
}
"""File → options of `costmodel predict`."""


def draw_all(folder: Path) -> None:
    """Draw every figure into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, options in FIGURES.items():
        try:
            main(["predict", *options, "--plot", str(folder / name), "--force"])
        except SystemExit as done:
            if done.code:
                raise


if __name__ == "__main__":
    draw_all(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
