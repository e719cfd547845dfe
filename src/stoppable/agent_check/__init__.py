"""Finds out whether an agent stops, and what it leaves behind, for ``stoppable check`` and ``assert_stops``."""
