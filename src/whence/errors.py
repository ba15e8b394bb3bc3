"""The one kind of error that a user sees: a clear sentence, exit code 2."""


class WhenceError(Exception):
    """Bad input or a state of the disk that the user can mend; the message says what and where."""
