"""The supervisor for async code, and the source of the blocking one: ``make twins`` makes ``_sync`` from it."""
