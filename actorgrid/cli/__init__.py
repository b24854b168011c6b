"""The command line, one command group per file."""
