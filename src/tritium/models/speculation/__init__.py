"""Speculative decoding: tokens are guessed, and several guesses are verified in the time of little more than one step.

Guesses change no token: each one is taken only where the sampler picks it.
"""
