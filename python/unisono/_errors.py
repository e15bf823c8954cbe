"""The errors that library calls raise. The class says what the caller should do. The text names peer, operation and numbers
(docs/reference/errors.md)."""

class Error(RuntimeError):
    """Any error of the library."""

    code = "error"


class Invalid(Error, ValueError):
    """Fix the call: arguments are wrong, or differ between ranks."""

    code = "invalid"


class Unavailable(Error):
    """Try later: nobody answers, an address is taken, a resource is gone."""

    code = "unavailable"


class PeerLost(Error):
    """Regroup: a peer is dead, unreachable, or this rank was removed. Group.reform() continues with the living ranks."""

    code = "peer_lost"


class Late(Error, TimeoutError):
    """The deadline passed. The content of outputs is unspecified unless the report says otherwise."""

    code = "late"


class Corrupt(Error):
    """Bytes were damaged, or belong to something else."""

    code = "corrupt"


class Unsupported(Error):
    """A correct request that this build or host cannot serve."""

    code = "unsupported"


class Internal(Error):
    """A bug in Unisono."""

    code = "internal"


for _class in (Error, Invalid, Unavailable, PeerLost, Late, Corrupt, Unsupported, Internal):
    _class.__module__ = "unisono"
