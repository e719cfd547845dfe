"""The sections of the table about a fleet; each measures its floor in the same run."""
