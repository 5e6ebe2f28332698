"""The networks under study; they hold no measuring code."""
