"""The doctor: checks of this machine and of a program, with the remedy."""
