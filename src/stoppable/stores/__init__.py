"""Where runs are kept: in memory, in a SQLite file, or in the engine of a fleet."""
