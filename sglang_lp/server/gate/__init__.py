"""The code that the gates of the HTTP process and of the scheduler share."""
