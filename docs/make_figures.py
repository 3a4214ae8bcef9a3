"""Draw every figure of README and docs: `python docs/make_figures.py`."""

from __future__ import annotations

import sys
from pathlib import Path

from costmodel.cli.main import main

FOLDER = Path(__file__).parent / "figures"
FIGURES = {
    "timeline.png": ["predict", "--figure", "timeline"],
    "timeline-chunked.png": ["predict", "--figure", "timeline", "--chunk", "2048"],
    "heights.png": ["predict", "--figure", "heights"],
    "breakdown.png": ["predict", "--figure", "breakdown"],
    "roofline.png": ["predict", "--figure", "roofline"],
    "itl-budgets.png": ["simulate", "interference", "--chunk", "512,2048,one-step", "--figure", "itl"],
    "percentiles.png": ["simulate", "interference", "--chunk", "512,2048,one-step", "--figure", "percentiles"],
    "distribution.png": ["simulate", "interference", "--chunk", "512,2048,one-step", "--figure", "distribution"],
    "memory.png": ["plan", "memory", "--figure", "gpus"],
    "budgets.png": ["plan", "chunk", "--itl-ms", "50"],
    "costs.png": [
        *("plan", "gpu", "--tpot-ms", "20", "--ttft-ms", "1000", "--model", "Llama-3.3-70B-Instruct"),
        *("--gpu", "h100,h200,b200,a100,mi300x"),
    ],
    "fleets.png": [
        *("plan", "replicas", "--rate", "60", "--ttft-ms", "500", "--tpot-ms", "20"),
        *("--prompt", "2000", "--output", "200", "--spread", "0.5"),
    ],
    "pareto.png": [
        *("sweep", "--gpu", "h100,h200,b200,a100,l40s", "--tp", "1,2", "--dtype", "bf16,fp8"),
        *("--streams", "1,2,4,8,16,32,64,128,256", "--prompt", "1000", "--output", "500"),
    ],
    "explain-request.png": ["explain", "request"],
    "explain-quadratic.png": ["explain", "quadratic"],
    "load.png": ["simulate", "load", "--rate", "12", "--burstiness", "0.3", "--spread", "0.8", "--kv-tokens", "80k"],
}
"""File → command that draws it, without the file."""


def draw_all(folder: Path) -> None:
    """Draw every figure into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, options in FIGURES.items():
        try:
            main([*options, "--plot", str(folder / name), "--force"])
        except SystemExit as done:
            if done.code:
                raise


if __name__ == "__main__":
    draw_all(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
