"""`python -m headwater`: the command line."""

from headwater.cli.app import main

main()
