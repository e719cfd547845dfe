"""Agent processes (``isolation="process"``): the host starts a child, mirrors its runs in the tree, and can kill it."""
