"""Small histories written for this project, each in the raw schema of one benchmark."""
