"""`python -m rockoon.cli` is `rockoon`."""

from rockoon.cli import main

main()
