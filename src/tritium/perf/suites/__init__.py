"""Named sets of cases, and the configuration files a person writes."""
