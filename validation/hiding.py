"""Secrets of the environment, kept out of what is shown and written."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

SECRET: Final = re.compile(r"secret|password|passwd|credential|api_?keys?|(^|[^a-z])(key|token|auth|bearer)$")
"""In a name, in lower case, of something that may be a secret; numbers of tokens are none."""
LEAST: Final = 6
"""Characters of a value that can be told from other words."""
USERINFO: Final = re.compile(r"(?<=://)[^/\s@]+@")
"""Of an address."""


def is_secret(name: str) -> bool:
    """Tell whether something of this name may be a secret: a flag, a key of a document, or a variable."""
    return SECRET.search(name.lower()) is not None


def hidden(text: str, environment: Mapping[str, str] | None = None) -> str:
    """Return a text without the values of variables that may be secrets, and without users and passwords of addresses.

    Args:
        text: that somebody else wrote, such as an engine.
        environment: the process's own by default.
    """
    variables = os.environ if environment is None else environment
    values = {value for name, value in variables.items() if is_secret(name) and len(value) >= LEAST}
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, "***")
    return USERINFO.sub("***@", text)
