"""python -m lnexp: the command line."""

from lnexp.cli import main

if __name__ == "__main__":
    main()
