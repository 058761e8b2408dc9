"""This machine: its description, its measured ceilings, and its tuned choices."""
