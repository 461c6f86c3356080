"""The HTML report: one folder that opens from a disk, without a network, a server or a build step."""
