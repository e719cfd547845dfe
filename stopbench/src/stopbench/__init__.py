"""Stops agents of many frameworks in many moments, and measures from outside what goes on."""

from stopbench.subject import Subject

__all__ = ["Subject"]
