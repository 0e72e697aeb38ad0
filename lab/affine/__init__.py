"""Every linear operator beside affine neighbours: which compositions one operator can do, and which come back so."""
