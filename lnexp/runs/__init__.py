"""Run folders and the processes that fill them."""
