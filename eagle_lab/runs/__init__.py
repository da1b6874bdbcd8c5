"""What tasks share: the folder of a run, a job's start and origin, the tables of a terminal."""
