"""The target of `run_many`'s processes: reads one request a line from stdin, answers one line on stdout.

Started as `python -m lt_lib.runs.worker`, so that it never imports the caller's main module: it works from a
notebook, from a script without an `if __name__ == "__main__"` guard, and on every system.
"""

import json
import os
import sys
from typing import TextIO

from lt_lib.runs.single import answer


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer requests until there are no more."""
    for line in requests:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a stray print must not spoil the answers
    serve(sys.stdin, replies)
