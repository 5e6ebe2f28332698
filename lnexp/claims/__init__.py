"""Claims of a config: stated, judged by measurement, shown."""
