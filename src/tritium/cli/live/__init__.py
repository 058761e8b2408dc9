"""The commands that show what runs on this machine, as it runs."""
