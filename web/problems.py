"""What went wrong with a request, in one line, and what to do about it."""

from __future__ import annotations

from http import HTTPStatus


class Problem(Exception):
    """A request without a result. `text` is one line, `to_do` says what the person can do."""

    def __init__(self, status: HTTPStatus, text: str, to_do: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.to_do = to_do


class SignedOut(Problem):
    """Nobody is signed in, or the API server rejects the credentials."""

    def __init__(self, text: str, to_do: str = "Sign in to go on.") -> None:
        super().__init__(HTTPStatus.UNAUTHORIZED, text, to_do)


class RenewalRefused(SignedOut):
    """The provider does not renew the session: it has ended, or another replica has renewed it with the same token.

    `mark` is the same for the same token, and says nothing about it.
    """

    def __init__(self, text: str, mark: str) -> None:
        super().__init__(text)
        self.mark = mark


def no_such_group(name: str) -> Problem:
    """Return the one answer for a group that does not exist and for one that the user may not read."""
    return Problem(
        HTTPStatus.NOT_FOUND,
        f"There is no group {name[:63]} that you may read.",
        "Check its name, or ask an administrator to run: bizrq allow USER GROUP --read",
    )


def unavailable(why: object) -> Problem:
    """Return the answer for an API server that does not answer, or answers nonsense."""
    return Problem(
        HTTPStatus.SERVICE_UNAVAILABLE,
        f"The API server does not answer: {' '.join(str(why).split())[:300]}",
        "Wait a moment, and load the page again.",
    )


def unreadable(why: object) -> Problem:
    """Return the answer for a stored group that this version cannot count with."""
    return Problem(
        HTTPStatus.UNPROCESSABLE_ENTITY, " ".join(str(why).split())[:500], "Change or delete the group with kubectl."
    )


def not_installed(server: str) -> Problem:
    return Problem(
        HTTPStatus.SERVICE_UNAVAILABLE, f"bizrq is not installed in the cluster {server}.", "Run: bizrq install"
    )
