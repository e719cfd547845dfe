"""What a stop is. Standard library only: no asyncio, no wall time."""
