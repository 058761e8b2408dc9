"""Reports: sections of text, tables and charts as one HTML page, Markdown or terminal text."""
