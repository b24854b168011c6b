"""The job and DAG model."""
