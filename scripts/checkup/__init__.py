"""What `memsys-bench doctor` does: small calls that find out what an endpoint takes and gives."""
