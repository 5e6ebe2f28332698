"""lnexp.watch: the same measuring in anybody's PyTorch training."""
