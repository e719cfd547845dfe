"""Agents in a process of their own: the host starts a child, shows its runs in the tree, and kills it if it must."""
