"""The supervisor for blocking code: made from ``_async`` by ``make twins``, apart from ``primitives``."""
