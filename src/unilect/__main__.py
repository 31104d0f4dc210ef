"""`python -m unilect` and the `unilect` command."""

import sys


def main() -> None:
    """Run the command line."""
    from unilect.cli import app

    app()


if __name__ == "__main__":
    sys.exit(main())
