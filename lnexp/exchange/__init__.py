"""Logs of other tools in, results out. Free of torch."""
