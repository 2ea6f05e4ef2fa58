"""Tasks: problems and how an answer is scored, one file each."""
