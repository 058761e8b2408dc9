"""Speculative decoding: tokens are guessed, and several guesses are verified in the time of little more than one step.

Knows nothing of text or scheduling. Guesses change no token: each one is taken only where the sampler picks it.
"""
