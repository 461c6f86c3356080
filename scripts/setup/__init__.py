"""Support of commands: arguments, files of conf, downloads, installed products, capabilities of endpoints, progress and exit codes."""
