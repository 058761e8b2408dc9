"""Programs in files: graphs as text, captured tensors as data, the structure of arguments and results."""
