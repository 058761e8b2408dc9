"""Mixtures of experts on a GPU: the choice of experts, and products with the weights of those that tokens chose."""
