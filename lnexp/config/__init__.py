"""A YAML file becomes the checked points of a sweep. Free of torch and pandas."""
