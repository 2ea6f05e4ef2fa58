"""What is measured about answers and decodes."""
