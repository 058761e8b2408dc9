"""`python -m tritium` is the command line."""

from tritium.cli.root import main

main()
