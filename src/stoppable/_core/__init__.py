"""L0: what a stop is. Standard library only, never asyncio, never wall time."""
