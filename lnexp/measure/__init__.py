"""Readings of a model in training; they attach from outside and let go."""
