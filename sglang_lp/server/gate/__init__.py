"""What both gates share, that of the HTTP process and that of the scheduler."""
