"""The text of a model: tokenizer, vocabulary, and chat templates within bounds."""
