"""One HTML file of a sweep: read offline, with every run in it. Free of torch."""
