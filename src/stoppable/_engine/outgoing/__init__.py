"""Requests that a run's code sends with ordinary clients: under ``instrument()`` each of them is a boundary."""
