"""The HTTP process: reads and checks clients' requests, and adds reports to their answers."""
