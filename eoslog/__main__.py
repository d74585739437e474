"""`python -m eoslog`: the command line, for the interpreter at hand."""

from eoslog.cli import main

main()
