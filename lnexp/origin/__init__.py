"""Where a non-finite value was born: a step again, operation by operation."""
