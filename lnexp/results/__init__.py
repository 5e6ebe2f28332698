"""Run folders in, frames and verdicts out. Free of torch."""
