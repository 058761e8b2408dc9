"""The live view: figures that processes publish, and those who show them in a terminal or on a page.

Nothing leaves the machine: a process writes a small file into a folder that only its user can read.
"""
