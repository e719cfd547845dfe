"""Runs that can be found, stopped and never forgotten."""
