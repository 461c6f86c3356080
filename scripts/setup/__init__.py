"""Around a command: its arguments, files of conf, downloads, installed products, what an endpoint can do, progress and exit codes."""
