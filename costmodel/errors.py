"""The errors that costmodel raises on purpose, for ``except costmodel.errors.InputError``."""

from costmodel.hardware.errors import CostModelError, InputError, NoAnswerError, UnsupportedError

__all__ = ["CostModelError", "InputError", "NoAnswerError", "UnsupportedError"]
