"""``python -m actorgrid`` and the ``actorgrid`` console script."""


def main() -> None:
    """Run the command line."""
    from actorgrid.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
