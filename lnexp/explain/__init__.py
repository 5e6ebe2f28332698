"""One run in words: what happened, where a bad value was born, what to try. Free of torch."""
