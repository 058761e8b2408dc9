"""The protocols of a server: requests of OpenAI's and Anthropic's APIs as one kind of request, and answers in their shapes."""
