"""The throwaway child of a dry run: settings on stdin, llama.cpp's words on stderr. It ends by itself, or is killed before."""

import json
import sys

from unilect.engines.gguf._child import dry_run
from unilect.runtime.child_limits import die_with, go_first, ignore_user_signals, limit_growth

_MOST_BYTES = 2 * 2**30  # a head of the largest size, and what is made of it

if __name__ == "__main__":
    settings = json.loads(sys.stdin.readline())
    die_with(settings["parent"])
    ignore_user_signals()
    go_first()
    limit_growth(_MOST_BYTES, for_good=True)
    dry_run(settings)
