"""lnexp boundary: how far a knob can be turned before most runs of a cell turn unstable."""
