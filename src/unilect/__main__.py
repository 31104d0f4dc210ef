"""`python -m unilect` and the `unilect` command."""

import gc
import os
import sys


def main() -> None:
    """Run the command line."""
    # a start makes some 60,000 objects that stay, and a request some hundred that go with their last reference
    gc.set_threshold(10_000, 20, 50)
    _open_what_is_closed()
    try:
        from unilect.cli.main import app

        app()
    except KeyboardInterrupt:  # before there is a command
        raise SystemExit(130) from None


def _open_what_is_closed() -> None:
    """Have stdin, stdout and stderr: where the caller has closed one, the next file or socket would get its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - until the process ends


if __name__ == "__main__":
    main()
