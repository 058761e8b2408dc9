"""Language models with ternary weights: configuration, weights, session, generation, text."""
