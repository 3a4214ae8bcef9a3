"""Where the command begins: Ctrl-C while the rest is still being imported is no traceback either."""

from __future__ import annotations

import sys

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


def main() -> None:
    """Import the command and run it."""
    try:
        from costmodel.cli.main import main as run
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        sys.exit(INTERRUPTED)
    run()
