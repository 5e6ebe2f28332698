"""Text -> ids -> seeded batches, and the entropies that a loss is judged against.

A text comes with Python, from a file, or from a seeded Markov chain whose entropy rate is known.

Shapes: B batch, T time, V vocabulary.
"""

from bisect import bisect
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from math import log
from pathlib import Path
from random import Random
from string import ascii_lowercase, ascii_uppercase, digits

import numpy as np
import torch
from torch import Tensor

from lnexp.config.schema import Data
from lnexp.files import Unreadable, read_bytes
from lnexp.messages import UserError, amount
from lnexp.seeds import derive

EVAL_WINDOWS = 32  # validation reads this many windows, evenly spread, at most
SETTLED = 1e-13  # far above rounding, which a law over many contexts never gets below
ALPHABET = ascii_lowercase + ascii_uppercase + digits + "+-"


@dataclass(frozen=True)
class Corpus:
    """A text as ids, split in two, with the facts that losses are compared with (nats)."""

    vocabulary: str  # of the whole text, sorted by code point; an id is an index into it
    train: np.ndarray
    val: np.ndarray  # empty: no validation
    sha256: str
    letter_frequencies: np.ndarray  # of the training text, one a vocabulary entry
    h1: float  # entropy of a letter
    h2: float  # entropy of a letter given the one before
    floor: float  # what no model can beat: H2's place is taken by the exact rate where it is known

    @property
    def ln_v(self) -> float:
        return log(len(self.vocabulary))


def load(data: Data) -> Corpus:
    """The text of a data section. Raises UserError for a text that cannot be used."""
    text, floor = SOURCES[data.source](data)
    if not text:
        raise UserError(f"data.path: {data.path} has no text")
    code_points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    letters, ids = np.unique(code_points, return_inverse=True)
    val_length = int(len(ids) * data.val_fraction)
    if data.val_fraction > 0 and val_length == 0:
        raise UserError(
            f"data.val_fraction: {data.val_fraction:g} of {amount(len(ids), 'character')} is less "
            "than one; write 0 for no validation or a larger fraction"
        )
    train = ids[: len(ids) - val_length]
    frequencies = np.bincount(train, minlength=len(letters)) / len(train)
    h2 = _conditional_entropy(train, len(letters))
    return Corpus(
        vocabulary="".join(map(chr, letters)),
        train=train,
        val=ids[len(ids) - val_length :],
        sha256=sha256(text.encode("utf-8")).hexdigest(),
        letter_frequencies=frequencies,
        h1=_entropy(frequencies),
        h2=h2,
        floor=h2 if floor is None else floor,
    )


def short_splits(corpus: Corpus, context: int, text: str = "the text") -> list[str]:
    """Why no window of context + 1 characters fits, one sentence a split; empty if all fit.

    A text that is too short as a whole has one sentence.
    """
    whole = len(corpus.train) + len(corpus.val)
    if whole <= context:
        parts = [len(ids) for ids in (corpus.train, corpus.val) if len(ids)]
        fits = f"the largest context that fits is {min(parts) - 1}" if min(parts) > 1 else ""
        return [
            f"{text} has {amount(whole, 'letter')}: too short for model.context {context}; "
            + (fits or "none fits")
        ]
    return [
        f"the {name} part of {text} has {amount(len(ids), 'character')}, "
        f"model.context {context} needs {context + 1}: "
        + (f"the largest context that fits is {len(ids) - 1}" if len(ids) > 1 else "none fits")
        for name, ids in (("training", corpus.train), ("validation", corpus.val))
        if len(ids) <= context and not (name == "validation" and len(ids) == 0)
    ]


def _pydoc(data: Data) -> tuple[str, float | None]:
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics)), None


def _file(data: Data) -> tuple[str, float | None]:
    path = Path(data.path)
    try:
        raw = read_bytes(path)
    except Unreadable as problem:
        raise UserError(f"data.path: {path}: {problem}; write the path of a text file") from None
    try:
        text = raw.decode(data.encoding)
        text.encode()  # half pairs that an escape spelt out are no text
    except LookupError:
        raise UserError(
            f"data.encoding: {data.encoding!r} is no text encoding; write utf-8, cp1252, ..."
        ) from None
    except UnicodeDecodeError as error:
        raise UserError(_undecodable(path, raw, data.encoding, error)) from None
    except UnicodeError as error:  # punycode, unicode_escape, ...: codecs made for other things
        raise UserError(
            f"data.encoding: {path} is no text in {data.encoding} ({error}); "
            "write utf-8, cp1252, ..."
        ) from None
    if "\0" in text:
        where = text.index("\0")
        raise UserError(
            f"data.path: {path} holds a NUL at character {where}: no text in {data.encoding}; "
            "write data.encoding (utf-16-le?)"
        )
    # A byte-order mark and the platform's line ends are no letters of the text.
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n"), None


def _undecodable(path: Path, raw: bytes, encoding: str, error: UnicodeDecodeError) -> str:
    likely = "utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "cp1252"
    byte = raw[error.start : error.start + 1].hex()
    return (
        f"data.path: {path} is not {encoding}: byte 0x{byte} at offset {error.start}; "
        f"write its encoding, e.g. data.encoding: {likely}"
    )


def _markov(data: Data) -> tuple[str, float | None]:
    return draw_chain(data.order, data.symbols, data.length, data.chain_seed)


SOURCES: dict[str, Callable[[Data], tuple[str, float | None]]] = {
    "pydoc": _pydoc,
    "file": _file,
    "markov": _markov,
}


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


def _entropy(p: np.ndarray) -> float:
    """-sum p ln p, in nats."""
    p = p[p > 0]
    return float(-(p * np.log(p)).sum()) + 0.0  # + 0.0: a one-letter text has 0, not -0


def _conditional_entropy(ids: np.ndarray, size: int) -> float:
    """H(next letter | letter) = H(pair) - H(first of the pair), in nats."""
    if len(ids) < 2:
        return 0.0
    _, pairs = np.unique(ids[:-1].astype(np.int64) * size + ids[1:], return_counts=True)
    firsts = np.bincount(ids[:-1], minlength=size)
    return _entropy(pairs / pairs.sum()) - _entropy(firsts / firsts.sum())


class Batches:
    """Random windows of the training text, from a generator of their own.

    The draws depend on the data seed, the batch size and the context alone, so runs that differ
    in depth or placement see the same batches.
    """

    def __init__(
        self, corpus: Corpus, batch_size: int, context: int, seed: int, device: torch.device
    ) -> None:
        self.batch_size, self.context, self.device = batch_size, context, device
        self.generator = torch.Generator().manual_seed(derive(seed, "data"))
        self._windows = torch.from_numpy(corpus.train).unfold(0, context + 1, 1)
        self._val = torch.from_numpy(corpus.val)

    def draw(self) -> tuple[Tensor, Tensor]:
        """x_BT and y_BT, the letters after them."""
        starts_B = torch.randint(len(self._windows), (self.batch_size,), generator=self.generator)
        return self._split(self._windows[starts_B])

    def validation(self) -> list[tuple[Tensor, Tensor]]:
        """The same evenly spread windows of the validation text at every call."""
        last = len(self._val) - self.context - 1
        if last < 0:
            return []
        starts = torch.linspace(0, last, min(EVAL_WINDOWS, last + 1)).long()
        windows = self._val.unfold(0, self.context + 1, 1)[starts]
        return [self._split(part) for part in windows.split(self.batch_size)]

    def _split(self, windows_BU: Tensor) -> tuple[Tensor, Tensor]:
        windows_BU = windows_BU.to(self.device)
        return windows_BU[:, :-1].contiguous(), windows_BU[:, 1:].contiguous()


def unigram_nll(corpus: Corpus, device: torch.device) -> Tensor:
    """-ln p(letter) under the training text's frequencies, float64, shape V.

    A letter that only the validation text holds has no frequency; it never is a training target.
    """
    with np.errstate(divide="ignore"):
        nll_V = -np.log(corpus.letter_frequencies)
    return torch.from_numpy(nll_V).to(device)
