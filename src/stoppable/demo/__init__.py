"""Agents that show every case of a stop, and the three-run scenario."""

from stoppable.demo.agents import AGENTS, demo_model

__all__ = ["AGENTS", "demo_model"]
