"""lnexp rescue: a failed run again from before its failure, with one change each."""
