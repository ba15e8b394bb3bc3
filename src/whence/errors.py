"""The one kind of error that a user sees: a clear sentence, exit code 2."""


class WhenceError(Exception):
    """Bad input or a state of the disk that the user can mend; the message says what and where."""


def out_of_memory(error: Exception) -> bool:
    """Python has an error for it, torch only a wording."""
    return isinstance(error, MemoryError) or "allocate memory" in str(error)
