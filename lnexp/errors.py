"""What a user is told when the input is wrong: one or two lines, never a traceback."""


class UserError(Exception):
    """Wrong usage, config or data. Each problem is one line: where, what was read, what to write.

    The command line prints the lines on standard error and exits with 2.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
