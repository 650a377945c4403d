"""The command line. Every command imports what it needs when it is called, so that help and lists answer at once."""
