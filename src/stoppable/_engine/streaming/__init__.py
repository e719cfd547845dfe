"""Streams that stop between chunks, and the wait for a chunk, which INTERRUPT ends."""
