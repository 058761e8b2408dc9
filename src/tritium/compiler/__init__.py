"""From a function to one native call: trace, rewrite, fuse, order, plan memory, run."""
