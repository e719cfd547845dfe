"""Streams that stop between chunks, and how the wait for a chunk is ended."""
