"""Write docs/nomenclature.md from the symbols of the model: `python docs/make_nomenclature.py`."""

from __future__ import annotations

from pathlib import Path

from costmodel.symbolic.nomenclature import ENTRIES

TARGET = Path(__file__).parent / "nomenclature.md"


def text() -> str:
    """Return the page."""
    rows = "\n".join(f"| {entry.name} | ${entry.latex}$ | {entry.unit} | {entry.meaning} |" for entry in ENTRIES)
    return (
        "# Nomenclature\n\nMade from `costmodel/symbolic/nomenclature.py` by `python docs/make_nomenclature.py`.\nSeveral kinds of one\n"
        "thing "
        "(layers, formats) carry a suffix: `L_2`, `b_w_bf16`, `e_c_gemm_bf16`.\n\n"
        "| symbol | written | unit | meaning |\n|---|---|---|---|\n" + rows + "\n"
    )


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
