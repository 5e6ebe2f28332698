"""Anybody's model and checkpoint, looked at from outside."""
