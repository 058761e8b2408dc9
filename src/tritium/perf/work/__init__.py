"""The same work for every library: cases from the op table, from traces and from users."""
