"""A record of the long-prompt experiment: what it says, and what the equations and the simulator say beside it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from costmodel.hardware.errors import InputError
from costmodel.validation.checking.asking import model_folder
from costmodel.validation.interference.comparing import Compare, compare
from costmodel.validation.interference.documents import Interference
from costmodel.validation.interference.reading import read_record
from costmodel.validation.interference.records import Record
from costmodel.validation.interference.summary import summarise


class Told(NamedTuple):
    """One experiment.

    Attributes:
        record, summary: of it; the summary has the prediction in it.
        compared: the prediction; None if none was asked for, or there is none.
        missed: why there is none.
    """

    record: Record
    summary: Interference
    compared: Compare | None = None
    missed: str | None = None


def tell(path: Path, about: dict[str, Any] | None) -> Told:
    """Read a record, and predict what was measured.

    Args:
        path: of the record.
        about: options of the prediction (:func:`~costmodel.validation.interference.comparing.compare`); without a model it is of what was
            served, where the record has its config. None for no prediction.

    Raises:
        InputError: the record cannot be read. A prediction that cannot be is no error: what was measured is told in any case.
    """
    record = read_record(path)
    summary = summarise(record, path.name)
    if about is None:
        return Told(record, summary)
    with ExitStack() as stack:
        about = dict(about)
        if record.model is not None:
            known = {"dtype": record.model.dtype, "kv_dtype": record.model.kv_dtype}
            if about.get("model") is None:
                known["model"] = stack.enter_context(model_folder(record.model))
            about |= {name: value for name, value in known.items() if about.get(name) is None}
        try:
            if about.get("model") is None:
                raise InputError("the prediction needs the model that was served: --model NAME, or its config.json")
            compared = compare(record, summary, **about)
        except InputError as error:
            return Told(record, summary, None, f"no prediction: {error}")
    said = {
        "predicted": compared.rows,
        "prediction": compared.about,
        "simulated": compared.simulated,
        "warnings": (*summary.warnings, *compared.warnings),
    }
    return Told(record, summary.model_copy(update=said), compared)
