"""`python -m unilect` and the `unilect` command."""

import gc


def main() -> None:
    """Run the command line."""
    # a start makes some 60,000 objects that stay, and a request some hundred that go with their last reference
    gc.set_threshold(10_000, 20, 50)
    try:
        from unilect.cli.main import app

        app()
    except KeyboardInterrupt:  # before there is a command
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
