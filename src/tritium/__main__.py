"""`python -m tritium` is the command line."""

from tritium.cli import main

main()
