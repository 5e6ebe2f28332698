"""One HTML file of a sweep: read offline, with every run in it. Never imports torch."""
