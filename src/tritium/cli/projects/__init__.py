"""The commands for anyone's code: time, bisect, and histories of revisions."""
