"""What Lamplighter raises and warns with."""


class LamplighterError(ValueError):
    """A request that cannot be carried out: what was given, where, what was expected, and what to do.

    Args:
        message: what is wrong, naming the layer or file concerned.
        hint: what the user can do about it; shown on a line of its own.
    """

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message}\nhint: {hint}")
        self.message = message
        self.hint = hint


class LamplighterWarning(UserWarning):
    """Something the user will want to know of, though the request was carried out."""
