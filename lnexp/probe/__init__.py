"""lnexp probe: how readings change over depth, and what theory says."""
