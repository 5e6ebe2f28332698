import signal
import sys
from pathlib import Path

import pytest

# A shell's background job ignores SIGINT, and so would every process that a test starts to stop it.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Begun last, each of these would leave the other workers without work.
LONGEST = (
    "figures/test_plots.py", "runs/test_interrupt.py", "test_cli.py", "runs/test_soak.py",
    "runs/test_execute.py", "boundary/test_work.py", "cases/test_sweeps.py", "rescue/test_work.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, all others in their own order."""
    items.sort(key=lambda item: not item.path.as_posix().endswith(LONGEST))


@pytest.fixture(autouse=True)
def a_clean_process():
    """One thread; and a run's flush-denormal setting does not outlive its test."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    """SUMS: 3,600 lines `A plus B is C.`; 18 letters, unigram entropy 2.647."""
    path = tmp_path / "sums.txt"
    lines = (f"{a} plus {b} is {a + b}.\n" for a in range(60) for b in range(60))
    path.write_bytes("".join(lines).encode())
    return path
