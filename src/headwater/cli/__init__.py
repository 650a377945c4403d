"""The command line. A command imports what it needs when it is called, so that help and lists are fast."""
