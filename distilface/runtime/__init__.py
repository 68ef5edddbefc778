"""The torch-free runtime: texts in, unit vectors out, from one graph of a bundle."""

from distilface.runtime.encoder import BATCH_TOKENS, Encoder
from distilface.runtime.engines import session_options

__all__ = ["BATCH_TOKENS", "Encoder", "session_options"]
