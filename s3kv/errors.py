"""Every exception that s3kv raises; the name tells the caller what to do.

Expected outcomes (an object that is not there, a name that is taken) are return values, not
exceptions: see `s3kv.bucket.base`. Foreign exceptions are translated once, where they enter.
"""

from __future__ import annotations


class S3KVError(Exception):
    """Root of all operating errors. A cache failure is never a request failure."""


class Transient(S3KVError):
    """The store or the network failed in a way that may pass: retry with backoff, then give up."""


class Throttled(Transient):
    """The store asked us to slow down (429, 503 SlowDown): back off before the next try."""


class Denied(S3KVError):
    """Credentials, policy or bucket refuse us: retrying cannot help."""


class Corrupt(S3KVError):
    """Bytes are not what their checksum, length or format says: drop them, never deliver them."""


class Mismatch(S3KVError):
    """Intact bytes that belong to another identity, namespace or format version."""


class NewerFormat(Mismatch):
    """Intact bytes of a format version that this build does not know: leave everything as it is."""

    def __init__(self, what: str, found: str, known: str) -> None:
        """what: the file; found: its format; known: the one that this build reads."""
        super().__init__(
            f"{what} has format {found!r}; this build reads {known!r}: upgrade s3kv on this "
            "engine, or give it another namespace label"
        )


class Closed(S3KVError):
    """The component is shut down and takes no more work."""


class ConfigError(ValueError):
    """A setting is wrong: the message names the field, the value and the remedy."""

    def __init__(self, field: str, value: object, problem: str, remedy: str) -> None:
        """Describe one wrong setting.

        field: name as the user writes it; value: what was given; problem and remedy: half
        sentences without a full stop.
        """
        super().__init__(f"{field}={value!r}: {problem}; {remedy}")
        self.field = field
        self.value = value
        self.problem = problem
        self.remedy = remedy
