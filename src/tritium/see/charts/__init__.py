"""Charts as SVG: one description, drawn for a page, a file or an image."""
