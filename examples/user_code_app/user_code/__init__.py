"""An app in which people write agent code, run it, watch it and press Stop."""
