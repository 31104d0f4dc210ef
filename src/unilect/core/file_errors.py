"""The words for files that the operating system refuses."""


def unreadable(error: OSError) -> str:
    """Make the message for a file that the system does not let us read."""
    return f"{error.filename}: cannot be read ({error.strerror}). Check the path, and that the user of this process may read it."
