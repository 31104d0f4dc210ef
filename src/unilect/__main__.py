"""`python -m unilect` and the `unilect` command."""

import gc


def main() -> None:
    """Run the command line."""
    # a start makes some 60,000 objects that stay, and a request some hundred that go with their last reference
    gc.set_threshold(10_000, 20, 50)
    from unilect.cli.main import app

    app()


if __name__ == "__main__":
    main()
