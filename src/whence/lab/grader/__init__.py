"""The grader: written answers as formulas, judged by what they do."""
