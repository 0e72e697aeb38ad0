"""A graph as a program: steps over named values, what is known of the values, and folding of constants."""
