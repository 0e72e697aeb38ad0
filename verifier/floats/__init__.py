"""What floating point makes of rules that are true of the reals."""
