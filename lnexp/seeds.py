"""Independent random streams from one seed: each is keyed by what it is for."""

from hashlib import sha256


def derive(seed: int, purpose: str) -> int:
    """A 63-bit seed for one purpose; streams of different purposes never share draws."""
    digest = sha256(f"{purpose}:{seed}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
