"""Before anything runs: files of conf, downloads, installed products, exit codes, and what an endpoint can do."""
