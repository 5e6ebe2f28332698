"""Text from a seeded Markov chain whose entropy rate is known exactly."""

from bisect import bisect
from math import log
from random import Random
from string import ascii_lowercase, ascii_uppercase, digits

import numpy as np

SETTLED = 1e-13  # far above rounding, which a law over many contexts never gets below
ALPHABET = ascii_lowercase + ascii_uppercase + digits + "+-"


def draw_chain(order: int, symbols: int, length: int, seed: int) -> tuple[str, float]:
    """A text of `length` letters and the chain's entropy rate in nats a letter."""
    # random.Random: its stream is the same in every Python version, numpy's need not be.
    random = Random(seed)
    contexts = symbols**order
    # Squared exponential weights: rows uneven enough that there is something to learn.
    weights = np.array([log(1.0 - random.random()) ** 2 for _ in range(contexts * symbols)])
    transitions = weights.reshape(contexts, symbols)
    transitions /= transitions.sum(axis=1, keepdims=True)
    cumulative = transitions.cumsum(axis=1)[:, :-1]
    context, letters = random.randrange(contexts), []
    for _ in range(length):
        letter = bisect(cumulative[context], random.random())
        letters.append(ALPHABET[letter])
        context = (context * symbols + letter) % contexts
    return "".join(letters), entropy_rate(transitions)


def entropy_rate(transitions: np.ndarray) -> float:
    """-sum_c pi(c) sum_s P(s|c) ln P(s|c), pi the stationary law over contexts (nats).

    pi is iterated until a step moves less than 1e-13 of it: the rate is then exact to about
    1e-13 ln(symbols) / (1 - the chain's second eigenvalue), below 1e-9 unless it hardly mixes.
    """
    contexts, symbols = transitions.shape
    pi = np.full(contexts, 1.0 / contexts)
    for _ in range(100_000):
        # From context (s1 .. sk) the chain moves to (s2 .. sk, s): the oldest letter is summed out.
        joint = (pi[:, None] * transitions).reshape(symbols, contexts // symbols, symbols)
        after = joint.sum(axis=0).reshape(contexts)
        settled = np.abs(after - pi).sum() < SETTLED
        pi = after
        if settled:
            break
    rows = -(transitions * np.log(np.where(transitions > 0, transitions, 1.0))).sum(axis=1)
    return float(pi @ rows)
