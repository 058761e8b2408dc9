"""The contents of slots, kept beyond a request: as bytes, as pages shared by all requests, and as files."""
