"""Errors that a user can act on: they say what was found, where, what was expected and what to do."""


class StopwiseError(Exception):
    """Base of every error that the command line prints as one line instead of a traceback.

    Attributes:
        exit_code: the process exit status; 1 when the data or the run failed, 2 when the usage was wrong.
    """

    exit_code = 1


class DataError(StopwiseError):
    """A file or a record is not what it should be (exit status 1)."""


class UsageError(StopwiseError):
    """A command, option or config key is wrong (exit status 2)."""

    exit_code = 2
