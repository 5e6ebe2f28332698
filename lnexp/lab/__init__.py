"""Instruments: small computations on a trained run, each a table of lab/."""
