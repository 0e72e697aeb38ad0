"""``python -m superopt.cli`` is the ``superopt`` command."""

from superopt.cli import main

main()
