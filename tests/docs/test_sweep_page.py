"""The commands and the code of docs/sweep.md run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np

import costmodel
from tests.cli.runner import run


def test_the_commands_of_the_page_run(repo_root: Path, own_folder: Path) -> None:
    text = (repo_root / "docs" / "sweep.md").read_text(encoding="utf-8")
    (own_folder / "PRICES.csv").write_text("gpu,price_per_hour\nh100,2.5\na100,1.4\n", "utf-8")
    [block] = re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for line in block.splitlines():
        result = run(shlex.split(line, comments=True)[1:])
        assert result.exit_code == 0, result.stderr
    assert {"sweep.csv", "pareto.png", "price.png"} <= {path.name for path in own_folder.iterdir()}
    [code] = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    names = {"costmodel": costmodel}
    exec(code, names)
    assert not np.isnan(names["most"])
