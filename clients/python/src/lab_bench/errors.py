"""What can go wrong. Every error of this package is a `BenchError`."""

from __future__ import annotations

from typing import Optional


class BenchError(Exception):
    """An error of this package."""


class TransportError(BenchError):
    """The server could not be reached, did not answer in time, or sent something other than an answer of its API."""


class APIError(BenchError):
    """The server refused a request or could not complete it. The fields are those of its error object."""

    def __init__(
        self, status: int, message: str, kind: Optional[str], code: Optional[str], param: Optional[str]
    ) -> None:
        super().__init__(f"{message} (status {status}{f', code {code}' if code else ''})")
        #: HTTP status; 0 for an error within a stream.
        self.status = status
        #: What is wrong, in a sentence.
        self.message = message
        #: Kind of the error, such as `invalid_request_error`.
        self.type = kind
        #: The error as one word, such as `model_not_found`.
        self.code = code
        #: The field of the request that is wrong, such as `lab.captures[0].point`.
        self.param = param
