"""Makes every shipped calibration of aiconfigurator-core's data again: kernels of each part and engine, then the engines' overheads.

python benchmarks/make_calibrations.py            # some minutes; needs the extra `silicon`; writes hardware/calibrations
python benchmarks/make_calibrations.py --check    # writes nothing, says which file would change

One file alone is made by the command that stands in it (`costmodel fit --dataset silicon ...`); this makes all of them from scratch,
so that none rests on an older one. That of the RTX 4090 comes from other data (`costmodel fit --dataset rtx4090`).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from costmodel.cli.files import write_atomically
from costmodel.errors import InputError
from costmodel.hardware.calibration import Calibration
from costmodel.hardware.catalog import gpu_names
from costmodel.hardware.shipped import ENGINES
from costmodel.validation.fitting.calibrate import kernel_calibration, to_toml
from costmodel.validation.fitting.kernels import OperatorFit, fit_kernels
from costmodel.validation.fitting.silicon import fit_all_engines, silicon_calibration

TARGET = Path(__file__).parents[1] / "hardware" / "calibrations"


def all_kernels() -> dict[tuple[str, str], list[OperatorFit]]:
    """Fit the kernels of every part and engine that has been measured."""
    found = {}
    for gpu in gpu_names():
        for engine in ENGINES:
            try:
                found[gpu, engine] = list(fit_kernels(gpu, engine))
            except InputError as error:
                if "have been measured" not in str(error):
                    raise
                continue
            print(f"{gpu} {engine}: {len(found[gpu, engine])} operators", file=sys.stderr)
    return found


def main() -> int:
    """Make the files, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    fits = all_kernels()
    kernels: dict[tuple[str, str], Calibration] = {
        (gpu, engine): kernel_calibration(gpu, engine, made, "fitted on the way")
        for (gpu, engine), made in fits.items()
    }
    engines = fit_all_engines(lambda gpu, engine: kernels[gpu, engine])
    changed = 0
    for (gpu, engine), made in fits.items():
        ran = f"costmodel fit --dataset silicon --gpu {gpu} --engine {engine} --seed 0"
        path = TARGET / f"{gpu}-{engine}.toml"
        text = to_toml(silicon_calibration(gpu, engine, made, engines, ran))
        if not check:
            write_atomically(path, text, force=True)
        elif not path.is_file() or without_date(path.read_text(encoding="utf-8")) != without_date(text):
            changed += 1
            print(f"{path.name} would change")
    print(f"{len(fits)} calibrations" + (f", {changed} would change" if check else f" in {TARGET}"), file=sys.stderr)
    return int(changed > 0)


def without_date(text: str) -> str:
    """Return the file without the day it was made on."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("date = "))


if __name__ == "__main__":
    sys.exit(main())
