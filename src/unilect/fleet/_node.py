"""
The process that becomes `ray start`: it first makes sure that it ends with its parent, and that the cluster would take this node.

It reads one JSON line: `parent` (a process), `head` (HOST:PORT, or empty), `version` (of unilect) and `arguments`. Where the node cannot
join it says `{"failed": "why"}`.
"""

import json
import os
import sys

from unilect.child_limits import die_with
from unilect.fleet import _state


def main() -> None:
    """Check, and become Ray."""
    settings = json.loads(sys.stdin.readline())
    die_with(settings["parent"])
    if settings["head"]:
        try:
            _state.check_join(settings["head"], settings["version"])
        except _state.Refused as why:
            print(json.dumps({"failed": str(why)}), flush=True)
            sys.exit(1)
    os.execv(sys.executable, [sys.executable, "-m", "ray.scripts.scripts", *settings["arguments"]])


if __name__ == "__main__":
    main()
