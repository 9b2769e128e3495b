"""The broker on the command line."""
