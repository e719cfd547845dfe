"""``python -m stoppable``."""

from stoppable.cli import main

main()
