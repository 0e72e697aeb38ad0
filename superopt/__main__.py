"""``python -m superopt``: the command line."""

from superopt.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
