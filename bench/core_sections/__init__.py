"""The sections of the core's table, one module each."""
