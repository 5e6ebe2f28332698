"""Pictures of a sweep, drawn from frames. Free of torch."""
