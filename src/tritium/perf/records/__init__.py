"""What is measured, and what a measurement leaves: cases, runs, environment, JSON.

Knows nothing of measuring.
"""
