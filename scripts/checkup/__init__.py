"""`memsys-bench doctor`: small calls that find out what an endpoint takes and gives."""
