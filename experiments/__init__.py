"""What is measured, by data: YAML experiments, the runner and the committed results."""
