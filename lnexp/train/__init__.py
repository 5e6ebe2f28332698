"""The training loop: it yields rows and knows no disk and no terminal."""
