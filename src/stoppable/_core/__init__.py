"""The core: what a stop is. It uses only the standard library, without asyncio and wall-clock time."""
