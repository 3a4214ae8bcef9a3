"""What a worker process of a local sweep does: a configuration per line of stdin, its row per line of stdout."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from typing import Any

from costmodel.hardware.errors import CostModelError
from costmodel.sweeping.configurations import simulate_configuration


def serve() -> None:
    """Answer until stdin ends. Ctrl-C is for the process that asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n")
    os.dup2(2, 1)  # whatever prints does not get between the replies
    for line in sys.stdin:
        reply: dict[str, Any]
        try:
            reply = {"row": simulate_configuration(json.loads(line))}
        except CostModelError as error:
            reply = {"error": str(error)}
        except Exception as error:
            traceback.print_exc()
            reply = {"error": f"a simulation failed: {error!r}"}
        try:
            replies.write(json.dumps(reply) + "\n")
            replies.flush()
        except BrokenPipeError:
            return
