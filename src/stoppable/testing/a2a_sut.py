"""A system under test for the public A2A conformance suites: ``python -m stoppable.testing.a2a_sut``."""

from __future__ import annotations

from stoppable.adapters.a2a.conformance import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
