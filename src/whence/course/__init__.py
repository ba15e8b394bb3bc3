"""The course's own command line, checkpoint layout and prediction files, on Whence's engine."""
