"""What is made of measurements: figures and tables."""
