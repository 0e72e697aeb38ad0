"""A graph as a program of steps over named values, with value analysis and constant folding."""
