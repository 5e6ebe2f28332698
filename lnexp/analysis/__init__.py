"""The reading half: run folders in, frames and verdicts out. Never imports torch."""
