"""Cache policies: which rows each forward computes, one file each."""
