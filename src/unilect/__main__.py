"""`python -m unilect` and the `unilect` command."""


def main() -> None:
    """Run the command line."""
    from unilect.cli.main import app

    app()


if __name__ == "__main__":
    main()
