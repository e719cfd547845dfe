"""Vercel's AI SDK: its package of npm. The server half of the SDK is JavaScript too, so there is no plain server."""

from __future__ import annotations

from bench.protocol_stops.page import Page


def opened(url: str, how: str) -> Page:
    """Open a chat that is stopped by the endpoint of the server (``stop``) or by the button of the SDK (``leave``)."""
    return Page("vercel_ai.mjs", "ai/dist/index.js", f"{url}/vercel/research", how)
