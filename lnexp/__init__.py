"""lnexp: a laboratory for the training stability of deep transformers."""

__version__ = "0.1.0"
