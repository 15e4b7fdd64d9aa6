"""Exact checks of a model under grouped decoding."""

from recap.verification.verifier import Report, verify

__all__ = ["Report", "verify"]
